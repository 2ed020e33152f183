// One launch carried out by the emulator on host memory: the PTX of the kernel that a GPU would run.
#pragma once

#include <cfenv>
#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "emulator/instruction.h"
#include "emulator/machine.h"
#include "emulator/ptx.h"
#include "host/kernel_launch.h"
#include "host/kernel_library.h"

namespace jaxbw {

// Says how much the emulator checks: "off" (the default), "hardware" or "strict", see cuda/emulator/machine.h.
inline constexpr const char* kEmulatorChecksVariable = "JAXBW_EMULATOR_CHECKS";
Result<emulator::Checks> requested_checks();

// Among which the blocks of a kernel may be divided that do not wait for each other.
uint32_t emulating_threads(emulator::Checks checks);

inline constexpr uint32_t kOneWave = 132;  // blocks of a grid that walks its work: as many as an H200 has SMs

// A kernel of a call, as the emulator takes it.
struct EmulatedLaunch {
  std::string_view kernel;
  LaunchShape shape;
  std::vector<uint8_t> parameters;
};

// Parts of a program point into the module, so it stays where it was made.
struct EmulatedKernel {
  emulator::Module module;
  emulator::Program program;
};

// A kernel of the directory, parsed at its first use in the process. Thread-safe.
Result<const EmulatedKernel*> load_emulated(std::string_view name, const std::string& directory = kernel_directory());

// Runs it. `machines`: threads that share its clusters; what a machine finds is the error. Throws what the emulator
// throws where the PTX cannot be read.
Status run_emulated(const EmulatedLaunch& launch, emulator::Checks checks, uint32_t machines,
                    const std::vector<emulator::Buffer>& memory);

// The emulator's errors are exceptions; here they become values.
template <typename Function>
auto guarded(Function function) -> decltype(function()) {
  try {
    return function();
  } catch (const std::exception& error) {
    return Status(StatusCode::kCorrupt, error.what());
  }
}

template <typename Params>
std::vector<uint8_t> bytes_of(const Params& params) {
  const auto* bytes = reinterpret_cast<const uint8_t*>(&params);
  return {bytes, bytes + sizeof(params)};
}

// XLA's threads may flush subnormal numbers to zero. A tensor core does not, and neither do those who emulate it.
class DefaultFloatingPoint {
 public:
  DefaultFloatingPoint() {
    std::fegetenv(&saved_);
    std::fesetenv(FE_DFL_ENV);
  }
  ~DefaultFloatingPoint() { std::fesetenv(&saved_); }
  DefaultFloatingPoint(const DefaultFloatingPoint&) = delete;
  DefaultFloatingPoint& operator=(const DefaultFloatingPoint&) = delete;

 private:
  std::fenv_t saved_;
};

}  // namespace jaxbw
