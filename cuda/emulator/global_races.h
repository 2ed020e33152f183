// Happens-before race detection in global memory, for all clusters of a grid.
//
// What orders accesses of one cluster is known to its RaceDetector (races.h). Between clusters, and beside that, there
// is synchronisation through global memory at gpu scope (PTX 8.8): a strong write publishes what its thread knows, as
// far as a fence or its own .release stands behind it, and a strong read of that location takes it over, at once where
// it is an .acquire, else at the next fence. A bulk store's write is known to whoever waits for its group without
// .read. The start of the kernel is ordered before everything.
//
// Memory is kept in chunks of 16 bytes, made when touched; masks tell their bytes apart. Where an order cannot be told
// for sure it is assumed, so that a finding is a race:
//   - what one thread of a cluster acquires from others at gpu scope, all of it know, but if the thread is the first
//     lane of a warp: then the others do when it has synchronised with any; a fence of any stands for all;
//   - fence.proxy.async of any state space counts for global memory;
//   - of many reads of a chunk that nothing orders, only some are remembered.
//   - accesses of several lanes of a warp to a chunk, where they cannot be told apart, are ordered among themselves.
// Not seen: single strong accesses (volatile, relaxed, atomic), cp.async without bulk,
// reads of tensor maps, accesses of clusters that another machine runs (LaunchOptions::cluster_step).
#pragma once

#include <array>
#include <cstdint>
#include <memory>
#include <optional>
#include <unordered_map>
#include <vector>

#include "races.h"

namespace jaxbw::emulator {

class GlobalRaces {
 public:
  struct Access {
    uint32_t time = 0;
    uint32_t cluster = 0;  // in order of their start
    uint32_t line : 27 = 0;
    uint32_t async : 1 = 0;
    uint32_t strong : 1 = 0;  // races with no other strong access
    uint32_t writes : 1 = 0;
    uint32_t repeats : 1 = 0;  // writes what is there already
    AgentId agent = kNoAgent;
    uint16_t warp = 0;        // of the cluster: which did it, or issued it
    uint16_t mask = 0;        // bytes of the chunk; 0: none
    uint8_t lane = kAnyLane;  // that did it, or issued it
  };

  // Returns the access that this one races with, if there is one. `access.mask` and `access.time` are set here.
  std::optional<Access> touch(const RaceDetector& races, Access access, uint64_t address, uint64_t bytes);

  // --- synchronisation at gpu scope
  void fence(uint32_t cluster, const Clocks& known);
  void strong_write(uint32_t cluster, Actor who, const Clocks& known, uint64_t address, bool release);
  void strong_read(uint32_t cluster, Actor who, uint64_t address, bool acquire);
  void sync_lanes(uint32_t cluster, AgentId warp);  // what its first lane has acquired the others know
  // fence.proxy.async: the asynchronous operations of the cluster may rely on what it has acquired.
  void fence_proxy(uint32_t cluster);

 private:
  // What is known of the agents of each cluster.
  struct Known {
    VectorClock seen, fenced;
  };
  using Knowledge = std::unordered_map<uint32_t, Known>;
  struct ClusterState {
    Knowledge acquired, unacquired;
    std::unordered_map<AgentId, Knowledge> first_lanes;  // acquired by the first lanes of warps
    Known fenced;                                        // of its own agents: what a fence at gpu scope stands behind
  };
  struct Chunk {
    Access write, read, foreign_read;  // foreign_read: of another cluster than `read`
    bool more = false;                 // in more_
  };
  static constexpr uint64_t kChunkBytes = 16, kPageChunks = 256;
  using Page = std::array<Chunk, kPageChunks>;

  Chunk& chunk(uint64_t index);
  bool ordered(const RaceDetector& races, const Access& before, const Access& now) const;
  void check(const RaceDetector& races, uint64_t index, const Access& now, std::optional<Access>& race);
  void remember(const RaceDetector& races, uint64_t index, Chunk& chunk, const Access& now);
  static void join(Knowledge& to, const Knowledge& from);

  std::unordered_map<uint64_t, std::unique_ptr<Page>> pages_;
  uint64_t last_page_ = ~uint64_t{0};
  Page* last_ = nullptr;
  std::unordered_map<uint64_t, std::vector<Access>> more_;  // by chunk: accesses without a place in it
  std::unordered_map<uint32_t, ClusterState> clusters_;     // those that synchronise through global memory
  std::unordered_map<uint64_t, Knowledge> published_;       // by address
};

}  // namespace jaxbw::emulator
