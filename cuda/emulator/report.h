// What a launch tells about itself: counts, and findings (what the kernel did wrong).
#pragma once

#include <array>
#include <cstdint>
#include <map>
#include <string>
#include <vector>

namespace jaxbw::emulator {

struct Finding {
  std::string kind;     // "poison", "mbarrier", "race", ...
  std::string message;  // what, and the operands
  std::string where;    // CTA and warp
  uint32_t line = 0;    // of the PTX
  uint64_t count = 1;   // occurrences at this line
};

// "race: line 12, CTA (0,0,0) warp 1: message (3 times)"
inline std::string describe(const Finding& f) {
  return f.kind + ": line " + std::to_string(f.line) + ", " + f.where + ": " + f.message +
         (f.count > 1 ? " (" + std::to_string(f.count) + " times)" : "");
}

struct Report {
  std::vector<Finding> findings;
  std::map<uint32_t, uint64_t> instructions;   // warp instructions, by index of the warp in its CTA
  std::map<std::string, uint64_t> waits;       // times that a warp parked, by kind
  std::map<std::string, uint64_t> bytes;       // moved, by engine
  std::map<std::string, uint64_t> operations;  // asynchronous, by engine
  uint64_t steps = 0;
  uint64_t clusters_started = 0, clusters_cancelled = 0;
};

}  // namespace jaxbw::emulator
