// What a launch tells about itself: counts, and findings (what the kernel did wrong).
#pragma once

#include <array>
#include <cstdint>
#include <map>
#include <string>
#include <vector>

namespace jaxbw::emulator {

struct Finding {
  std::string kind;         // "poison", "mbarrier", "race", ...
  std::string message;      // what, and the operands
  std::string where;        // CTA and warp
  std::string source;       // file and line of what the PTX was compiled from, where it says so (.loc)
  uint32_t line = 0;        // of the PTX
  uint32_t other_line = 0;  // of a race: of the access before
  uint64_t count = 1;       // occurrences at this line, or these two
};

// "race: line 12 (kernel.py:3), CTA (0,0,0) warp 1: message (3 times)"
inline std::string describe(const Finding& f) {
  return f.kind + ": line " + std::to_string(f.line) + (f.source.empty() ? "" : " (" + f.source + ")") + ", " +
         f.where + ": " + f.message + (f.count > 1 ? " (" + std::to_string(f.count) + " times)" : "");
}

// Something that took a while, of a launch with tracing. Times are ticks: executed instructions, and steps of
// asynchronous operations. They give the order, and no duration on any GPU.
struct Event {
  // kSignal: an arrival at an mbarrier, or bytes that it expects or gets; kPass: a wait, at the moment that it is over.
  enum class Kind : uint8_t { kRun, kWait, kOperation, kPhase, kFinding, kSignal, kPass };
  Kind kind = Kind::kRun;
  uint32_t cta = 0;   // in the grid
  uint32_t warp = 0;  // in the CTA: that runs, waits, issued the operation, or completed the phase
  uint64_t begin = 0, end = 0;
  uint64_t started = 0;    // operations: their first step
  uint32_t mbarrier = 0;   // waits, phases, signals and passes: offset in shared memory
  int64_t phase = 0;       // signals: of the mbarrier, that it counts for; passes: that was waited for, from -1
  uint64_t operation = 0;  // operations, and their signals: its number, from 1; 0: of a warp
  uint64_t bytes = 0;      // operations: moved; passes of a bulk group: how many may go on
  std::array<uint32_t, 3> shape{};  // MMA: M, N, bytes of K; load: bytes of the box, CTAs that get it; signal: rank
  bool by_engine = false;           // phases: completed by an asynchronous operation
  uint32_t line = 0;                // of the PTX
  std::string name;                 // opcode, kind of wait, or finding
};

struct Report {
  std::vector<Finding> findings;
  std::vector<Event> events;  // of a launch with tracing
  // By index of the warp in its CTA: asynchronous operations issued, by opcode, and waits, by kind.
  std::map<uint32_t, std::map<std::string, uint64_t>> warp_operations, warp_waits;
  std::map<uint32_t, uint64_t> instructions;   // warp instructions, by index of the warp in its CTA
  std::map<std::string, uint64_t> bytes;       // moved, by engine
  std::map<std::string, uint64_t> operations;  // asynchronous, by engine
  std::string output;                          // what printf wrote
  uint64_t steps = 0;
  uint64_t clusters_started = 0, clusters_cancelled = 0;
};

}  // namespace jaxbw::emulator
