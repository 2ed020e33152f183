// A ring of slots between producers and consumers, each slot with a full and an empty barrier.
#pragma once

#include "ptx/mbarrier.h"

namespace jaxbw {

// One side's place in the ring. Slots come round with alternating barrier parity; the producer starts a round ahead,
// so that its first waits, on slots that nobody has filled yet, fall through.
class RingPosition {
 public:
  RingPosition() = default;
  static JAXBW_DEVICE RingPosition consumer(uint32_t slots) { return {slots, 0, 0}; }
  static JAXBW_DEVICE RingPosition producer(uint32_t slots, uint32_t first = 0) { return {slots, first, 1}; }

  JAXBW_DEVICE uint32_t slot() const { return slot_; }
  JAXBW_DEVICE uint32_t parity() const { return parity_; }

  // Of one or two slots: changes from 0 to 1 and back with each step. `first_parity`: 0 of a consumer, 1 of a producer.
  JAXBW_DEVICE uint32_t turn(uint32_t first_parity) const { return slots_ > 1 ? slot_ : parity_ ^ first_parity; }

  // By `steps` slots, no more than there are.
  JAXBW_DEVICE void advance(uint32_t steps = 1) {
    slot_ += steps;
    if (slot_ >= slots_) {
      slot_ -= slots_;
      parity_ ^= 1;
    }
  }

  // Slots from here to the end of the ring: as many have one parity.
  JAXBW_DEVICE uint32_t slots_to_end() const { return slots_ - slot_; }

  // By any number of slots.
  JAXBW_DEVICE void skip(uint32_t steps) {
    const uint32_t rounds = (slot_ + steps) / slots_;
    slot_ += steps - rounds * slots_;
    parity_ ^= rounds & 1;
  }

 private:
  JAXBW_DEVICE RingPosition(uint32_t slots, uint32_t slot, uint32_t parity)
      : slots_(slots), slot_(slot), parity_(parity) {}

  uint32_t slots_, slot_, parity_;
};

// The barriers of a ring: shared addresses of the first full and the first empty barrier.
struct RingBarriers {
  static constexpr uint32_t kBarrierBytes = 8;

  uint32_t first_full, first_empty;

  JAXBW_DEVICE uint32_t full(uint32_t slot) const { return first_full + slot * kBarrierBytes; }
  JAXBW_DEVICE uint32_t empty(uint32_t slot) const { return first_empty + slot * kBarrierBytes; }

  // Slots are filled by asynchronous copies or MMAs, and emptied by readers anywhere in the cluster whose reads are
  // complete when they arrive.
  JAXBW_DEVICE void wait_full(RingPosition at) const { ptx::mbarrier_wait(full(at.slot()), at.parity()); }
  JAXBW_DEVICE void wait_empty(RingPosition at) const { ptx::mbarrier_wait_relaxed(empty(at.slot()), at.parity()); }

  // Until every slot is empty, where `next` would be filled next. A CTA must not exit before: readers in its peers may
  // have told it that they are done, but arrivals travel, and no relaxed barrier of the cluster waits for them.
  JAXBW_DEVICE void await_empty(RingPosition next, uint32_t slots) const {
    for (; slots > 0; --slots, next.advance()) wait_empty(next);
  }

  // By one thread, before anybody uses the ring; ptx::fence_mbarrier_init and a cluster barrier follow. Of as many
  // slots as there may be, whatever their number in this launch: a loop has a fence in each round.
  template <uint32_t kSlots>
  JAXBW_DEVICE void init(uint32_t full_arrivals, uint32_t empty_arrivals) const {
#pragma unroll
    for (uint32_t slot = 0; slot < kSlots; ++slot) {
      ptx::mbarrier_init(full(slot), full_arrivals);
      ptx::mbarrier_init(empty(slot), empty_arrivals);
    }
  }
};

// A side's way over neighbouring slots of a ring, up to its end: parity stays and addresses grow by constants, so that
// a step is one addition. At least one slot.
class RingRun {
 public:
  // Of at most `most` slots. A producer waits for empty slots and fills them, a consumer the other way round.
  static JAXBW_DEVICE RingRun producer(RingBarriers ring, RingPosition at, uint32_t most) {
    return {ring.first_empty, ring.first_full, at, most};
  }
  static JAXBW_DEVICE RingRun consumer(RingBarriers ring, RingPosition at, uint32_t most) {
    return {ring.first_full, ring.first_empty, at, most};
  }

  JAXBW_DEVICE uint32_t slots() const { return slots_; }
  JAXBW_DEVICE uint32_t slot() const { return (signalled_ - first_signalled_) / RingBarriers::kBarrierBytes; }

  // The barrier that this side waits for, as RingBarriers has it, and the one that it or its work arrives at.
  JAXBW_DEVICE void wait_full() const { ptx::mbarrier_wait(awaited(), parity_); }
  JAXBW_DEVICE void wait_empty() const { ptx::mbarrier_wait_relaxed(awaited(), parity_); }
  JAXBW_DEVICE uint32_t signalled() const { return signalled_; }

  // On to the next slot; false behind the last one.
  JAXBW_DEVICE bool next() {
    signalled_ += RingBarriers::kBarrierBytes;
    return signalled_ != end_;
  }

 private:
  JAXBW_DEVICE RingRun(uint32_t first_awaited, uint32_t first_signalled, RingPosition at, uint32_t most)
      : slots_(min(most, at.slots_to_end())),
        parity_(at.parity()),
        first_signalled_(first_signalled),
        to_awaited_(first_awaited - first_signalled),
        signalled_(first_signalled + at.slot() * RingBarriers::kBarrierBytes),
        end_(signalled_ + slots_ * RingBarriers::kBarrierBytes) {}

  JAXBW_DEVICE uint32_t awaited() const { return signalled_ + to_awaited_; }

  uint32_t slots_, parity_, first_signalled_, to_awaited_, signalled_, end_;
};

}  // namespace jaxbw
