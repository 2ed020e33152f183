// A decoded program: what the interpreter's inner loop reads.
//
// The register file of a warp is structure-of-arrays: a register is a row of 32 lanes, each 4, 8 or 16 bytes
// wide (a predicate is one 32-bit mask). A word in front of each row says which lanes were never written
// ("undefined"). Immediates and special registers are rows as well, filled when a warp starts, so that an
// instruction has one form of source.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "ptx.h"

namespace jaxbw::emulator {

constexpr uint32_t kLanes = 32;
constexpr uint32_t kAllLanes = ~0u;
constexpr uint32_t kRowHeader = 64;  // keeps the lanes on a cache line

// A row of the register file. `bytes` per lane: 0 (predicate), 4, 8 or 16.
struct Reg {
  uint32_t at = 0;
  uint8_t bytes = 4;
};

// In front of the lanes of a row: what is known about it.
struct RowState {
  uint32_t undefined;  // lanes that were never written
  // Asynchronous operations that own the row: tcgen05.ld that will write it, wgmma that write or read it.
  uint16_t loads, wgmma_writes, wgmma_reads;
  // A tcgen05.ld wrote it, or a mov copied what one wrote, and no tcgen05.wait::ld has followed. Kept under checks.
  enum class Unwaited : uint8_t { kNo, kLoaded, kCopied } unwaited;
  uint32_t load;  // number of that tcgen05.ld in its warp
  // How many wgmma.fence its warp had executed when it last used the row, but for wgmma itself. Kept under checks.
  uint32_t fences;
};
static_assert(sizeof(RowState) <= kRowHeader);

struct Step;
struct Instruction;
using Handler = void (*)(Step&, const Instruction&);

enum InstructionFlag : uint8_t {
  kPure = 1,     // reads s[], writes d[], nothing else: undefined lanes propagate from sources to destinations
  kAligned = 2,  // all live lanes of the warp execute it together (.aligned)
  kMayPark = 4,  // may leave its lanes waiting: lanes whose guard is false go on without them
  kExit = 8,
  kPassesOn = 32,       // a mov: what holds of its sources, undefined or in flight, then holds of its destinations
  kOwnsList = 16,       // may use rows of list[] that an earlier asynchronous operation still owns
  kUsesFragments = 64,  // no wgmma, but uses a row that is in the list[] of one
};

struct Instruction {
  Handler execute = nullptr;
  Reg guard;
  bool guarded = false, guard_negated = false;
  uint8_t flags = 0;
  uint8_t destinations = 0, sources = 0;
  Reg d[2];
  Reg s[7];
  uint32_t line = 0;
  uint32_t target = 0;     // branch target, or a mode that the handler knows
  uint64_t immediate = 0;  // address offset, or bits that the handler knows
  uint64_t detail = 0;     // further decoded modifiers, as the handler knows them
  std::vector<Reg> list;   // vector operands
  const Statement* statement = nullptr;
};

// A row that holds the same value from the start of a warp to its end.
struct Constant {
  enum class Kind : uint8_t { kBits, kSharedAddress, kSpecial };
  Reg reg;
  Kind kind = Kind::kBits;
  uint64_t bits = 0;    // the value, or the offset in shared memory
  std::string special;  // "%tid.x"
};

// Where a lane keeps a value: in a row, or in its own memory.
struct Place {
  bool in_memory = false;
  Reg row;
  uint32_t offset = 0;
  uint32_t bytes = 0;
};

// A device function as its callers see it. Each function has its rows and memory once: without recursion a lane is in
// a function at most once at a time, and two lanes that came from different calls do not share any of it.
struct Frame {
  uint32_t begin = 0;  // its first instruction
  Reg return_to;       // where each lane goes on when it returns
  std::vector<Place> inputs, outputs;
};

// A call: where the arguments come from, and where the results go.
struct Call {
  uint32_t frame = 0;
  std::vector<Place> inputs, outputs;
};

// An entry and the functions that it calls, callees first.
struct Program {
  const Module* module = nullptr;
  const Function* function = nullptr;  // the entry
  uint32_t begin = 0;                  // its first instruction
  std::vector<Instruction> code;
  std::vector<Frame> frames;
  std::vector<Call> calls;
  std::vector<Constant> constants;
  std::vector<Reg> rows;
  std::vector<std::vector<uint32_t>> branch_targets;
  std::vector<uint32_t> parameter_offsets;
  uint32_t file_bytes = 0;
  uint32_t parameter_bytes = 0;
  uint32_t shared_bytes = 0;  // static; dynamic shared memory follows
  uint32_t local_bytes = 0;   // per thread
};

// Where the module's .global and .const variables lie: their addresses, and their initial contents.
constexpr uint64_t kModuleDataAddress = 0x0000'0070'0000'0000;
struct ModuleData {
  std::vector<uint64_t> addresses;  // by index in Module::variables; shared variables: their offset
  std::vector<uint8_t> bytes;
  uint32_t shared_bytes = 0;
};
ModuleData lay_out(const Module& module);

Program decode(const Module& module, const ModuleData& data, const Function& function);

}  // namespace jaxbw::emulator
