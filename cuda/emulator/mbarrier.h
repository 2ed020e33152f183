// One mbarrier object (PTX 9.7.13.15): a phase ends when no arrivals are pending and the tx-count is zero.
//
// The tx-count is signed: a copy may complete before the thread that expects it says so. Phases are counted in
// 64 bits, where the hardware keeps a parity, so that a waiter who has fallen behind can be told.
#pragma once

#include <array>
#include <cstdint>
#include <map>

#include "races.h"

namespace jaxbw::emulator {

constexpr int64_t kMaxTransactions = (1 << 20) - 1;
constexpr uint32_t kMaxArrivals = (1 << 20) - 1;

struct MBarrier {
  // What an operation did to the barrier, for the checks.
  struct Change {
    bool completed = false;
    const char* misuse = nullptr;
  };

  uint32_t offset = 0;
  uint32_t rank = 0;
  uint32_t count = 0;   // arrivals of a phase
  int64_t pending = 0;  // arrivals still to come
  int64_t transactions = 0;
  uint64_t phase = 0;  // the one that is going on
  SyncClocks clocks;
  AgentId initialiser = kNoAgent;  // until its initialisation is fenced for asynchronous operations and other CTAs
  std::map<const void*, std::array<uint64_t, 32>>
      seen;  // by warp and lane: the phase in progress when it last saw one complete

  // By warp and lane: how many phases it has waited for, one after the other. Fewer than `seen` where it came late.
  std::map<const void*, std::array<uint64_t, 32>> waited;

  Change arrive(int64_t arrivals) {
    pending -= arrivals;
    if (pending < 0) return {false, "more arrivals than the barrier's count"};
    return settle();
  }
  Change expect(int64_t bytes) {
    transactions += bytes;
    if (transactions > kMaxTransactions) return {false, "the tx-count exceeds 2^20 - 1"};
    return settle();
  }
  Change complete(int64_t bytes) {
    transactions -= bytes;
    if (transactions < -kMaxTransactions)
      return {false, "the tx-count falls below -(2^20 - 1): bytes arrive that nobody expects"};
    return settle();
  }
  bool parity_done(uint32_t parity) const { return (phase & 1) != (parity & 1); }

 private:
  Change settle() {
    if (pending != 0 || transactions != 0) return {};
    ++phase;
    pending = count;
    clocks.finish_phase();
    return {true, nullptr};
  }
};

}  // namespace jaxbw::emulator
