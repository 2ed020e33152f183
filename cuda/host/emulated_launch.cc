#include "host/emulated_launch.h"

#include <algorithm>
#include <cstdlib>
#include <fstream>
#include <map>
#include <memory>
#include <mutex>
#include <thread>

namespace jaxbw {
namespace {

using emulator::Checks;

constexpr uint32_t kCheckedClusters = 2;  // that run at a time under checks, to have them meet

Status run_machine(const emulator::Program& program, const emulator::LaunchOptions& options,
                   const std::vector<emulator::Buffer>& memory, const std::vector<uint8_t>& parameters) {
  return guarded([&] {
    const DefaultFloatingPoint floating_point;
    emulator::Machine machine(program, options, memory, parameters);
    machine.run();
    const std::vector<emulator::Finding>& findings = machine.report().findings;
    if (findings.empty()) return Status();
    std::string text = concat(program.module->file, ": the emulator has found");
    for (const emulator::Finding& finding : findings) text += "\n  " + describe(finding);
    return Status(StatusCode::kCorrupt, text);
  });
}

}  // namespace

Result<Checks> requested_checks() {
  const char* value = std::getenv(kEmulatorChecksVariable);
  const std::string_view name = value == nullptr ? "off" : value;
  if (name == "off") return Checks::kOff;
  if (name == "hardware") return Checks::kHardware;
  if (name == "strict") return Checks::kStrict;
  return invalid(kEmulatorChecksVariable, " is '", name, "'; it is 'off', 'hardware' or 'strict'");
}

uint32_t emulating_threads(Checks checks) {
  return checks == Checks::kOff ? std::max(std::thread::hardware_concurrency(), 1u) : 1;
}

namespace {

void replace_all(std::string& text, std::string_view old, std::string_view by) {
  if (old.empty() || old == by) return;
  for (size_t at = 0; (at = text.find(old, at)) != std::string::npos; at += by.size()) text.replace(at, old.size(), by);
}

}  // namespace

Result<const EmulatedKernel*> load_emulated(std::string_view name, const std::string& directory) {
  static std::mutex mutex;
  static auto& kernels = *new std::map<std::string, std::unique_ptr<EmulatedKernel>>;
  const std::lock_guard lock(mutex);
  const KernelInstance* const instance = find_instance(name);
  if (instance == nullptr) return Status(StatusCode::kCorrupt, concat(name, " is no kernel"));
  const std::string path = concat(directory, "/", instance->source, ".ptx"), key = concat(path, " ", name);
  if (const auto found = kernels.find(key); found != kernels.end()) return found->second.get();
  std::ifstream file(path);
  std::stringstream content;
  if (!file || !(content << file.rdbuf())) return Status(StatusCode::kCorrupt, concat(path, ": cannot be read"));
  std::string text = content.str();
  replace_all(text, instance->source, name);
  replace_all(text, instance->placeholder, instance->operands);
  auto kernel = std::make_unique<EmulatedKernel>();
  kernel->module = emulator::parse(text, concat(name, ".ptx"));
  const emulator::ModuleData data = emulator::lay_out(kernel->module);
  if (!data.bytes.empty()) return Status(StatusCode::kCorrupt, concat(path, ": has variables in global memory"));
  for (const emulator::Function& function : kernel->module.functions) {
    if (function.name == name) kernel->program = emulator::decode(kernel->module, data, function);
  }
  if (kernel->program.function == nullptr) return Status(StatusCode::kCorrupt, concat(path, ": has no entry ", name));
  return kernels.emplace(key, std::move(kernel)).first->second.get();
}

Status run_emulated(const EmulatedLaunch& launch, Checks checks, uint32_t machines,
                    const std::vector<emulator::Buffer>& memory) {
  const Result<const EmulatedKernel*> kernel = load_emulated(launch.kernel);
  if (!kernel.ok()) return kernel.status();
  const LaunchShape& shape = launch.shape;
  const bool checked = checks != Checks::kOff;
  const emulator::LaunchOptions options{.grid = {shape.blocks},
                                        .block = {shape.threads},
                                        .cluster = {shape.cluster_size},
                                        .dynamic_shared = shape.shared_memory,
                                        .checks = checks,
                                        .sm_count = shape.cluster_size * (checked ? kCheckedClusters : 1)};

  std::vector<Status> outcomes(machines);
  const auto run_share = [&](uint32_t share) {
    emulator::LaunchOptions own = options;
    own.first_cluster = share;
    own.cluster_step = machines;
    outcomes[share] = run_machine((*kernel)->program, own, memory, launch.parameters);
  };
  {
    std::vector<std::jthread> threads;
    for (uint32_t share = 1; share < machines; ++share) threads.emplace_back(run_share, share);
    run_share(0);
  }
  const auto failed = std::find_if(outcomes.begin(), outcomes.end(), [](const Status& s) { return !s.ok(); });
  return failed == outcomes.end() ? Status() : *failed;
}

}  // namespace jaxbw
