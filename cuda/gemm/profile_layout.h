// What a profiling build of a kernel leaves in memory (gemm/profile.h writes it, jaxbw/_src/lab/profiling reads it).
// Plain C++.
//
// A CTA has a head of kProfileHeadWords 64-bit words, and behind it a slice of `slice_words` for each warp:
//
//   head   globaltimer and clock64 of one moment, and of a later one; the SM; three words unused
//   slice  how many stamps the warp made, clock64 when it began, then the stamps: in the low 32 bits those of the
//   clock,
//          above them 24 bits of a number, and in the uppermost 8 what the warp does from here on
#pragma once

#include <cstdint>

namespace jaxbw {

// What a warp does until its next stamp. The number that goes with it is that of the work item, the slot of the ring,
// or where wgmma reads stages the step along K. `await`: it does nothing.
#define JAXBW_ACTIVITIES(X)                 \
  X(kSetUp, "set-up")                       \
  X(kAwaitBarriers, "await barriers")       \
  X(kAwaitUpstream, "await upstream")       \
  X(kNextItem, "next item")                 \
  X(kAwaitEmpty, "await empty stage")       \
  X(kLoad, "load")                          \
  X(kAwaitFull, "await full stage")         \
  X(kMultiply, "multiply")                  \
  X(kAwaitMultiply, "await tensor core")    \
  X(kAwaitTurn, "await turn")               \
  X(kAwaitAccumulator, "await accumulator") \
  X(kAwaitResponse, "await response")       \
  X(kEpilogue, "epilogue")                  \
  X(kAwaitStaging, "await staging")         \
  X(kStore, "store")                        \
  X(kAwaitSums, "await sums")               \
  X(kAwaitCluster, "await cluster")         \
  X(kAwaitExit, "await exit")               \
  X(kExit, "exit")

enum class Activity : uint32_t {
#define JAXBW_ACTIVITY(name, text) name,
  JAXBW_ACTIVITIES(JAXBW_ACTIVITY)
#undef JAXBW_ACTIVITY
};

// The last argument of a profiling build: where it lies.
struct ProfileMemory {
  uint64_t* words;
  uint64_t slice_words;
};

constexpr uint32_t kProfileHeadWords = 8;
constexpr uint32_t kProfileSliceHead = 2;  // words of a slice before the stamps

constexpr uint64_t profile_words(uint32_t warps, uint64_t slice_words) {  // of a CTA
  return kProfileHeadWords + warps * slice_words;
}

}  // namespace jaxbw
