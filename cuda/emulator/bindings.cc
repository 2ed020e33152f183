#include "bindings.h"

#include <nanobind/stl/array.h>
#include <nanobind/stl/map.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/tuple.h>
#include <nanobind/stl/vector.h>

#include <array>
#include <memory>
#include <tuple>

#include "datapath_bindings.h"
#include "decoder.h"
#include "machine.h"

namespace jaxbw::emulator {
namespace {

namespace nb = nanobind;
using namespace nb::literals;

// A parsed module with its .global variables, and the entries that have been decoded so far.
class LoadedModule {
 public:
  LoadedModule(const std::string& text, const std::string& file)
      : module_(parse(text, file)), data_(lay_out(module_)) {}

  LoadedModule(const LoadedModule&) = delete;
  LoadedModule& operator=(const LoadedModule&) = delete;

  std::vector<std::string> entries() const {
    std::vector<std::string> names;
    for (const Function& function : module_.functions)
      if (function.is_entry && !function.is_declaration) names.push_back(function.name);
    return names;
  }

  const Program& program(const std::string& entry) {
    auto& program = programs_[entry];
    if (program) return *program;
    for (const Function& function : module_.functions)
      if (function.is_entry && !function.is_declaration && function.name == entry)
        program = std::make_unique<Program>(decode(module_, data_, function));
    if (!program) throw Error("the module has no entry '" + entry + "'");
    return *program;
  }

  // (name, offset, bytes) of each parameter.
  std::vector<std::tuple<std::string, uint32_t, uint64_t>> parameters(const std::string& entry) {
    const Program& program = this->program(entry);
    std::vector<std::tuple<std::string, uint32_t, uint64_t>> out;
    for (size_t i = 0; i < program.parameter_offsets.size(); ++i)
      out.emplace_back(program.function->parameters[i].name, program.parameter_offsets[i],
                       program.function->parameters[i].bytes);
    return out;
  }

  std::array<uint32_t, 3> required_cluster(const std::string& entry) {
    const uint32_t* size = program(entry).function->required_cluster;
    return {size[0], size[1], size[2]};
  }

  std::span<uint8_t> data() { return data_.bytes; }

 private:
  Module module_;
  ModuleData data_;
  std::map<std::string, std::unique_ptr<Program>> programs_;
};

Dim dim_of(const std::tuple<uint32_t, uint32_t, uint32_t>& value) {
  return {std::get<0>(value), std::get<1>(value), std::get<2>(value)};
}

using Triple = std::tuple<uint32_t, uint32_t, uint32_t>;

// The report, and what ended the launch early, if anything did.
std::tuple<Report, std::string> launch(LoadedModule& module, const std::string& entry, Triple grid, Triple block,
                                       Triple cluster, uint32_t dynamic_shared, nb::bytes parameters,
                                       const std::vector<std::tuple<uint64_t, uint64_t, bool>>& buffers,
                                       Schedule schedule, uint64_t seed, Checks checks, uint32_t sm_count,
                                       uint64_t step_limit, bool trace, bool fused_sums) {
  const Program& program = module.program(entry);
  std::vector<Buffer> memory;
  for (const auto& [address, bytes, writable] : buffers)
    memory.push_back({address, {reinterpret_cast<uint8_t*>(address), bytes}, writable});
  memory.push_back({kModuleDataAddress, module.data(), true});
  const auto* data = reinterpret_cast<const uint8_t*>(parameters.c_str());
  const LaunchOptions options{.grid = dim_of(grid),
                              .block = dim_of(block),
                              .cluster = dim_of(cluster),
                              .dynamic_shared = dynamic_shared,
                              .schedule = schedule,
                              .seed = seed,
                              .checks = checks,
                              .sm_count = sm_count,
                              .step_limit = step_limit,
                              .trace = trace,
                              .fused_sums = fused_sums};
  Machine machine(program, options, std::move(memory), {data, data + parameters.size()});
  nb::gil_scoped_release release;
  std::string error;
  try {
    machine.run();
  } catch (const Error& caught) {
    error = caught.what();
  }
  return {std::move(machine.report()), error};
}

}  // namespace

void bind_emulator(nb::module_& parent) {
  nb::module_ m = parent.def_submodule("emulator", "A PTX machine on the CPU. Its face is jaxbw.emulator.");
  nb::exception<Error>(m, "EmulatorError", PyExc_RuntimeError);

  nb::enum_<Schedule>(m, "Schedule")
      .value("eager", Schedule::kEager)
      .value("latest", Schedule::kLatest)
      .value("random", Schedule::kRandom)
      .value("pct", Schedule::kPct)
      .value("hold", Schedule::kHold);
  nb::enum_<Checks>(m, "Checks")
      .value("strict", Checks::kStrict)
      .value("hardware", Checks::kHardware)
      .value("off", Checks::kOff);

  nb::class_<Finding>(m, "Finding")
      .def_ro("kind", &Finding::kind)
      .def_ro("message", &Finding::message)
      .def_ro("where", &Finding::where)
      .def_ro("line", &Finding::line)
      .def_ro("other_line", &Finding::other_line)
      .def_ro("source", &Finding::source)
      .def_ro("count", &Finding::count)
      .def("__repr__", &describe);

  nb::enum_<Event::Kind>(m, "EventKind")
      .value("run", Event::Kind::kRun)
      .value("wait", Event::Kind::kWait)
      .value("operation", Event::Kind::kOperation)
      .value("phase", Event::Kind::kPhase)
      .value("finding", Event::Kind::kFinding)
      .value("signal", Event::Kind::kSignal)
      .value("pass", Event::Kind::kPass);
  nb::class_<Event>(m, "Event")
      .def_ro("kind", &Event::kind)
      .def_ro("cta", &Event::cta)
      .def_ro("warp", &Event::warp)
      .def_ro("begin", &Event::begin)
      .def_ro("end", &Event::end)
      .def_ro("started", &Event::started)
      .def_ro("mbarrier", &Event::mbarrier)
      .def_ro("by_engine", &Event::by_engine)
      .def_ro("line", &Event::line)
      .def_ro("phase", &Event::phase)
      .def_ro("operation", &Event::operation)
      .def_ro("bytes", &Event::bytes)
      .def_ro("shape", &Event::shape)
      .def_ro("name", &Event::name);

  nb::class_<Report>(m, "Report")
      .def_ro("events", &Report::events)
      .def_ro("warp_operations", &Report::warp_operations)
      .def_ro("warp_waits", &Report::warp_waits)
      .def_ro("findings", &Report::findings)
      .def_ro("instructions", &Report::instructions)
      .def_ro("bytes", &Report::bytes)
      .def_ro("operations", &Report::operations)
      .def_prop_ro("output", [](const Report& report) { return nb::bytes(report.output.data(), report.output.size()); })
      .def_ro("steps", &Report::steps)
      .def_ro("clusters_started", &Report::clusters_started)
      .def_ro("clusters_cancelled", &Report::clusters_cancelled);

  nb::class_<LoadedModule>(m, "Module")
      .def(nb::init<const std::string&, const std::string&>(), "text"_a, "file"_a)
      .def("entries", &LoadedModule::entries)
      .def("parameters", &LoadedModule::parameters, "entry"_a)
      .def(
          "required_cluster",
          [](LoadedModule& module, const std::string& entry) {
            const auto size = module.required_cluster(entry);
            return Triple{size[0], size[1], size[2]};
          },
          "entry"_a)
      .def("launch", &launch, "entry"_a, "grid"_a, "block"_a, "cluster"_a, "dynamic_shared"_a, "parameters"_a,
           "buffers"_a, "schedule"_a, "seed"_a, "checks"_a, "sm_count"_a, "step_limit"_a, "trace"_a, "fused_sums"_a);

  m.def("opcodes", [] {
    std::vector<std::tuple<std::string, std::string, std::string, std::string>> rows;
    for (const Opcode& row : opcode_table())
      rows.emplace_back(std::string(row.mnemonic), std::string(row.modifiers), std::string(row.operands),
                        std::string(row.section));
    return rows;
  });

  bind_emulator_datapath(m);
}

}  // namespace jaxbw::emulator
