// Stamps of what each warp does when, in a profiling build (JAXBW_PROFILE); in every other one there is no code here.
// A stamp says what the warp does from then on, so that its whole time is accounted for.
#pragma once

#include "gemm/profile_layout.h"
#include "ptx/thread.h"

namespace jaxbw {

#ifdef JAXBW_PROFILE

using ProfileArgument = ProfileMemory;

// A warp's slice of the memory, and how far it is written. What is observed is no part of the observer, so that a stamp
// can be made wherever the kernel's context is at hand.
class Profile {
 public:
  JAXBW_DEVICE explicit Profile(ProfileMemory memory) : memory_(memory) {
    const uint64_t now = clock64();
    if (ptx::elect_one()) slice()[1] = now;
  }

  // From here on the warp, all of which calls this, does something else.
  JAXBW_DEVICE void enter(Activity activity, uint32_t number = 0) const {
    const uint32_t stamp = clock32(), what = static_cast<uint32_t>(activity) << 24 | (number & 0xffffff);
    if (count_ < memory_.slice_words - kProfileSliceHead && ptx::elect_one()) {
      slice()[kProfileSliceHead + count_] = uint64_t{what} << 32 | stamp;
    }
    ++count_;
  }

  // Two clocks at one moment: the SM's, and the one that all SMs share, when it ticks. By the warp that has nothing to
  // do, since a tick may take a microsecond.
  JAXBW_DEVICE void pair_clocks() const {
    if (warp() != kClockWarp) return;
    const uint64_t before = global_timer();
    uint64_t timer = before;
    while (timer == before) timer = global_timer();
    pair(0, timer);
  }

  // Goes on behind the stamps of a copy.
  JAXBW_DEVICE void go_on_from(const Profile& copy) const { count_ = copy.count_; }

  // The last stamp of all.
  JAXBW_DEVICE void finish() const {
    enter(Activity::kExit);
    if (ptx::elect_one()) slice()[0] = count_;
    if (warp() == kClockWarp) pair(1, global_timer());
  }

 private:
  static constexpr uint32_t kClockWarp = 3;

  static JAXBW_DEVICE uint32_t warp() { return threadIdx.x / ptx::kWarpSize; }

  // Worked out for every stamp: between stamps, registers are wanted by what is observed.
  JAXBW_DEVICE uint64_t* head() const {
    return memory_.words + blockIdx.x * profile_words(blockDim.x / ptx::kWarpSize, memory_.slice_words);
  }
  JAXBW_DEVICE uint64_t* slice() const { return head() + kProfileHeadWords + warp() * memory_.slice_words; }

  static JAXBW_DEVICE uint32_t clock32() {
    uint32_t now;
    asm volatile("mov.u32 %0, %%clock;" : "=r"(now)::"memory");
    return now;
  }

  static JAXBW_DEVICE uint64_t clock64() {
    uint64_t now;
    asm volatile("mov.u64 %0, %%clock64;" : "=l"(now)::"memory");
    return now;
  }

  static JAXBW_DEVICE uint64_t global_timer() {
    uint64_t now;
    asm volatile("mov.u64 %0, %%globaltimer;" : "=l"(now)::"memory");
    return now;
  }

  JAXBW_DEVICE void pair(uint32_t which, uint64_t timer) const {
    const uint64_t clock = clock64();
    uint32_t sm;
    asm volatile("mov.u32 %0, %%smid;" : "=r"(sm));
    if (ptx::elect_one()) {
      head()[2 * which] = timer;
      head()[2 * which + 1] = clock;
      head()[4] = sm;
    }
  }

  ProfileMemory memory_;
  mutable uint32_t count_ = 0;
};

#else

struct ProfileArgument {};

class Profile {
 public:
  JAXBW_DEVICE explicit Profile(ProfileArgument) {}
  JAXBW_DEVICE void enter(Activity, uint32_t = 0) const {}
  JAXBW_DEVICE void pair_clocks() const {}
  JAXBW_DEVICE void go_on_from(const Profile&) const {}
  JAXBW_DEVICE void finish() const {}
};

#endif

}  // namespace jaxbw
