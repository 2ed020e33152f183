// Arrivals at mbarriers of other CTAs, which travel: they land at some time.
#pragma once

#include <utility>
#include <vector>

#include "machine.h"

namespace jaxbw::emulator {

// What is done to a barrier: bytes first, then the arrival.
struct Arrival {
  enum Detail : uint64_t { kExpect = 1, kNoArrive = 2, kDrop = 4, kComplete = 8, kRelaxed = 16 };

  uint64_t detail = 0;
  uint32_t value = 1;  // bytes, or arrivals

  void land(Machine& machine, MBarrier& barrier) const {
    if (detail & kExpect) machine.advance(barrier, barrier.expect(value));
    if (detail & kComplete) machine.advance(barrier, barrier.complete(value));
    if (detail & kNoArrive) return;
    const uint32_t arrivals = detail & kExpect ? 1 : value;
    if (detail & kDrop) barrier.count -= arrivals;
    machine.advance(barrier, barrier.arrive(arrivals));
  }
};

// Those of one instruction, in any order that its parts are taken in.
class RemoteArrivals final : public Operation {
 public:
  struct Part {
    Cta* cta;
    uint32_t offset;
    Arrival arrival;
  };

  RemoteArrivals(uint32_t line, Cta& issuer, std::vector<Part> parts)
      : Operation(line, issuer), parts_(std::move(parts)) {
    for (const Part& part : parts_) ++part.cta->operations;
  }

  bool step(Machine& machine) override {
    for (uint32_t count = machine.part(uint32_t(parts_.size())); count > 0; --count) {
      const Part part = parts_.back();
      parts_.pop_back();
      part.cta->heard_of_cluster = true;
      part.arrival.land(machine, machine.mbarrier_of(*part.cta, part.offset, *this));
      --part.cta->operations;
    }
    return parts_.empty();
  }

 private:
  std::vector<Part> parts_;
};

}  // namespace jaxbw::emulator
