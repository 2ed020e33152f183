// cp.async without bulk (PTX 9.7.9.25.3): copies of 4, 8 or 16 bytes by each thread, from global to shared memory.
//
// The copies of a warp complete in order here, which hardware does not promise; groups are kept per warp, and who waits
// for one knows of all that are complete. They go through the generic proxy: what they write has a fence.proxy.async
// before it is read by wgmma. The race detector does not see what they read.
#include <cstring>

#include "decoder.h"
#include "lanes.h"
#include "operands.h"

namespace jaxbw::emulator {
namespace {

class SmallCopy final : public Operation {
 public:
  struct Part {
    Location to;
    uint64_t from;
    uint32_t bytes, source_bytes;  // the rest is zero-filled
  };

  SmallCopy(Step& s, std::vector<Part> parts)
      : Operation(s.line, s.cta), warp_(s.warp), parts_(std::move(parts)), number_(++s.warp.copies_issued) {
    ++issuer->operations;
    if (RaceDetector* races = issuer->cluster->races.get()) agent_ = races->begin_operation(actor_of(s));
    for (const Part& part : parts_) {
      if (s.machine.checking()) std::memset(part.to.undefined, 1, part.bytes);
      bytes += part.source_bytes;
    }
    s.machine.report().bytes["global load"] += bytes;
  }

  bool step(Machine& machine) override {
    for (const Part& part : parts_) {
      machine.touch_shared(*this, agent_, *part.to.cta, uint32_t(part.to.offset), part.bytes, true, Proxy::kGeneric);
      std::memset(part.to.bytes, 0, part.bytes);
      std::memset(part.to.undefined, 0, part.bytes);
      if (part.source_bytes)
        std::memcpy(part.to.bytes, machine.global_bytes(part.from, part.source_bytes, false), part.source_bytes);
    }
    --issuer->operations;
    if (RaceDetector* races = issuer->cluster->races.get()) {
      races->end_copy(agent_, warp_.copied);
      races->retire(agent_);
    }
    warp_.copies_complete = number_;
    machine.wake(&warp_.copies_complete);
    return true;
  }

 private:
  Warp& warp_;
  const std::vector<Part> parts_;
  const uint64_t number_;
  AgentId agent_ = kNoAgent;
};

// Arrives when the copies before it are complete.
class CopyArrival final : public Operation {
 public:
  CopyArrival(Step& s, const Location& barrier, bool increments)
      : Operation(s.line, s.cta), warp_(s.warp), cta_(*barrier.cta), offset_(uint32_t(barrier.offset)) {
    ++cta_.operations;
    if (increments) ++s.machine.mbarrier(barrier).pending;
  }

  bool step(Machine& machine) override {
    MBarrier& barrier = machine.mbarrier_of(cta_, offset_, *this);
    barrier.clocks.arriving.join(warp_.copied);
    machine.advance(barrier, barrier.arrive(1));
    --cta_.operations;
    return true;
  }

 private:
  Warp& warp_;
  Cta& cta_;
  const uint32_t offset_;
};

void copy_async(Step& s, const Instruction& in) {
  const auto& operands = in.statement->operands;
  const auto bytes = uint32_t(in.immediate);
  check_use(s, in.s[0], "an address");
  check_use(s, in.s[1], "an address");
  std::vector<SmallCopy::Part> parts;
  for_lanes(s.active, [&](uint32_t lane) {
    const uint32_t source_bytes = in.sources > 2 ? row32(s, in.s[2])[lane] : bytes;
    if (source_bytes > bytes) throw Error("cp.async: the source is larger than the copy");
    const uint64_t from = lane_address(s, in.s[1], operands[1].bits, lane);
    if (from % bytes) throw Error("misaligned access: cp.async of " + std::to_string(bytes) + " bytes");
    parts.push_back({s.machine.locate_shared(s.cta, lane_address(s, in.s[0], operands[0].bits, lane), bytes, bytes),
                     from, bytes, source_bytes});
  });
  s.machine.issue(std::make_unique<SmallCopy>(s, std::move(parts)), &s.warp.copies);
}

void commit_copies(Step& s, const Instruction&) { s.warp.copy_groups.push_back(s.warp.copies_issued); }

// All but the `immediate` youngest groups; wait_all (detail): every copy.
void wait_for_copies(Step& s, const Instruction& in) {
  auto& groups = s.warp.copy_groups;
  while (!groups.empty() && groups.front() <= s.warp.copies_complete) groups.pop_front();
  const bool done = in.detail ? s.warp.copies_complete == s.warp.copies_issued : groups.size() <= in.immediate;
  if (!done) return s.park(Wait::kBulkGroup, &s.warp.copies_complete);
  if (RaceDetector* races = s.cta.cluster->races.get()) races->observe_copies(actor_of(s), s.warp.copied);
}

void arrive_behind_copies(Step& s, const Instruction& in) {
  for_lanes(s.active, [&](uint32_t lane) {
    const Location barrier = s.machine.locate_shared(s.cta, lane_address(s, in.s[0], in.immediate, lane), 8, 8);
    s.machine.issue(std::make_unique<CopyArrival>(s, barrier, in.detail == 0), &s.warp.copies);
  });
}

}  // namespace

void decode_copy(Decoder& d) {
  d.address(0, Space::kShared);
  d.address(1, Space::kGlobal);
  d.out.immediate = d.constant(2);
  if (d.out.immediate != 4 && d.out.immediate != 8 && d.out.immediate != 16) d.fail("copies 4, 8 or 16 bytes");
  size_t at = 3;
  const bool policy = d.has("L2::cache_hint");
  if (at + policy < d.operands()) d.source(at++, Type::k_u32);
  if (policy) d.read(d.operand(at++), Type::k_b64);
  d.out.execute = copy_async;
}
void decode_copy_commit(Decoder& d) { d.out.execute = commit_copies; }
void decode_copy_wait(Decoder& d) {
  d.out.detail = d.opcode.mnemonic == "cp.async.wait_all";
  if (!d.out.detail) d.out.immediate = d.constant(0);
  d.out.flags |= kMayPark;
  d.out.execute = wait_for_copies;
}
void decode_copy_arrive(Decoder& d) {
  d.address(0, Space::kShared);
  d.out.detail = d.has("noinc");
  d.out.execute = arrive_behind_copies;
}

}  // namespace jaxbw::emulator
