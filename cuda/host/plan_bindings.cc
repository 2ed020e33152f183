#include "host/plan_bindings.h"

#include <nanobind/ndarray.h>
#include <nanobind/stl/optional.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/tuple.h>
#include <nanobind/stl/variant.h>
#include <nanobind/stl/vector.h>

#include <algorithm>
#include <limits>
#include <map>

#include "gemm/reduce.h"
#include "host/gemm_call.h"
#include "host/gemm_instances.h"

namespace nb = nanobind;

namespace jaxbw {

const KernelFamily& family_named(const std::string& name) {
  const KernelFamily* family = find_family(name);
  if (family == nullptr) throw nb::value_error(concat("no kernel family '", name, "': 'sm90' or 'sm100'").c_str());
  return *family;
}

namespace {

constexpr const char* kSchedulers[] = {"static", "clc", "none"};  // as LaunchScheduler counts them
constexpr const char* kRasters[] = {"m", "n"};                    // as Raster does

// --- what comes in

// A number of any size; what no rule lets pass stays that.
uint32_t number(nb::handle value) {
  int overflow = 0;
  const long long found = PyLong_AsLongLongAndOverflow(value.ptr(), &overflow);
  if (found == -1 && PyErr_Occurred() != nullptr) throw nb::python_error();
  constexpr long long kLimit = std::numeric_limits<int32_t>::max();
  const long long clamped = overflow != 0 ? overflow * kLimit : std::clamp(found, -kLimit, kLimit);
  return static_cast<uint32_t>(clamped);
}

std::optional<uint32_t> optional_number(nb::handle value) {
  return value.is_none() ? std::nullopt : std::optional(number(value));
}

std::optional<LaunchScheduler> scheduler_of(const KernelFamily& family, nb::handle value) {
  if (value.is_none()) return std::nullopt;
  const auto name = nb::cast<std::string>(value);
  if (name == "dynamic") return family.dynamic;
  const auto* found = std::ranges::find(kSchedulers, name);
  if (found == std::end(kSchedulers)) throw nb::value_error(concat("no scheduler '", name, "'").c_str());
  return static_cast<LaunchScheduler>(found - kSchedulers);
}

// A jaxbw.GemmConfig that has a tile.
ConfigRequest request_of(const KernelFamily& family, nb::handle config, uint32_t resident) {
  ConfigRequest request;
  GemmConfig& given = request.given;
  const auto get = [&](const char* name) { return number(config.attr(name)); };
  given.block_m = get("block_m");
  given.block_n = get("block_n");
  const nb::object cluster = config.attr("cluster");
  given.cluster_m = number(cluster[0]);
  given.cluster_n = number(cluster[1]);
  given.cluster_k = get("cluster_k");
  given.cta_group = get("cta_group");
  given.pingpong = get("pingpong");
  given.swizzle = get("swizzle");
  given.raster = nb::cast<std::string>(config.attr("raster")) == kRasters[1];
  given.split_k = get("split_k");
  given.split_tail = get("split_tail");
  given.wave = given.split_tail != 0 ? resident : 0;
  given.swap_ab = get("swap_ab");
  request.block_k = optional_number(config.attr("block_k"));
  request.stages = optional_number(config.attr("stages"));
  request.accumulators = optional_number(config.attr("accumulators"));
  request.scheduler = scheduler_of(family, config.attr("scheduler"));
  request.batch_invariant = get("batch_invariant") != 0;
  return request;
}

GemmProblem make_problem(uint64_t batch, uint64_t m, uint64_t n, uint64_t k, bool lhs_batched, bool rhs_batched,
                         Major lhs_major, Major rhs_major, DataType lhs, DataType rhs, DataType output, bool promoted,
                         float alpha, float beta, std::optional<DataType> c, std::optional<DataType> bias,
                         bool bias_along_m, std::optional<DataType> residual, Activation activation, bool gated,
                         bool save, bool factors_in_memory, bool lhs_scale, bool rhs_scale, uint32_t lhs_blocks,
                         uint32_t rhs_blocks, uint32_t mx, bool out_scale, bool out_mx, Grouped grouped,
                         uint64_t groups, uint64_t total_groups, uint64_t source_rows) {
  return {.batch = batch,
          .m = m,
          .n = n,
          .k = k,
          .a_batched = lhs_batched,
          .b_batched = rhs_batched,
          .a_major = lhs_major,
          .b_major = rhs_major,
          .a_type = lhs,
          .b_type = rhs,
          .output = output,
          .promoted = promoted,
          .alpha = alpha,
          .beta = beta,
          .factors_in_memory = factors_in_memory,
          .a_scaled = lhs_scale,
          .b_scaled = rhs_scale,
          .a_blocks = lhs_blocks,
          .b_blocks = rhs_blocks,
          .mx = mx,
          .c = c,
          .bias = bias,
          .residual = residual,
          .bias_along_m = bias_along_m,
          .activation = activation,
          .gated = gated,
          .save = save,
          .out_scaled = out_scale,
          .out_mx = out_mx,
          .grouped = grouped,
          .groups = groups,
          .total_groups = total_groups,
          .source_rows = source_rows};
}

// --- what goes out

using Found = std::variant<PlanOnDevice, Violation>;

Found plan(const std::string& family_name, const GemmProblem& problem, nb::handle config, uint32_t resident) {
  const KernelFamily& family = family_named(family_name);
  if (resident == 0) throw nb::value_error("resident is 0; a device runs 1 cluster or more at a time");
  const Planned<GemmConfig> complete = jaxbw::complete(family, request_of(family, config, resident), &problem);
  if (!complete.ok()) return complete.violation();
  const Planned<GemmPlan> planned = plan_gemm(family, problem, *complete);
  if (!planned.ok()) return planned.violation();
  return PlanOnDevice{*planned, resident};
}

// What of a configuration holds whatever the problem, or for one.
std::variant<nb::dict, Violation> complete_config(const std::string& family_name, nb::handle config,
                                                  const std::optional<GemmProblem>& problem) {
  const KernelFamily& family = family_named(family_name);
  const Planned<GemmConfig> complete =
      jaxbw::complete(family, request_of(family, config, 1), problem ? &*problem : nullptr);
  if (!complete.ok()) return complete.violation();
  if (Verdict broken = check_config(family, *complete)) return *std::move(broken);
  nb::dict open;
  open["block_k"] = complete->k_spans * span_elements(problem ? counted_type(*problem) : DataType::kBF16);
  open["stages"] = complete->stages;
  open["accumulators"] = complete->accumulators;
  open["scheduler"] = kSchedulers[complete->scheduler];
  return open;
}

nb::dict attributes_of(const GemmPlan& plan) {
  const GemmAttributes attributes = attributes_of_call(plan);
  nb::dict named;
  named["kernel"] = std::string(attributes.kernel);
  named["alpha"] = attributes.alpha;
  named["beta"] = attributes.beta;
#define JAXBW_FIELD(name, ...) named[#name] = attributes.name;
  JAXBW_PROBLEM_ATTRIBUTES(JAXBW_FIELD)
  JAXBW_CONFIG_FIELDS(JAXBW_FIELD)
#undef JAXBW_FIELD
  return named;
}

// Of the call's operands, in the types that they are launched in.
std::vector<const char*> repacked(const GemmPlan& plan) {
  GemmConfig straight = plan.config;
  straight.swap_ab = 0;
  const GemmProblem p = as_launched(plan.problem, straight);
  std::vector<const char*> names;
  if (operand_a(*plan.family, p).repacked()) names.push_back("lhs");
  if (operand_b(*plan.family, p).repacked()) names.push_back("rhs");
  return names;
}

using Numbers = nb::ndarray<nb::numpy, int64_t>;

Numbers numbers(std::vector<int64_t> values, std::initializer_list<size_t> shape) {
  auto* data = new std::vector<int64_t>(std::move(values));
  nb::capsule owner(data, [](void* data) noexcept { delete static_cast<std::vector<int64_t>*>(data); });
  return Numbers(data->data(), shape, owner);
}

// The order of the tiles of one matrix: (row, column) of each.
Numbers walk(uint32_t rows, uint32_t columns, uint32_t swizzle, const std::string& raster) {
  if (rows == 0 || columns == 0 || swizzle == 0) throw nb::value_error("there are no tiles, or bands, of 0");
  const TileOrder order = tile_order(rows, columns, swizzle, raster == kRasters[1] ? Raster::kAlongN : Raster::kAlongM);
  std::vector<int64_t> tiles;
  for (uint32_t i = 0; i < rows * columns; ++i) {
    const Tile tile = rasterise(i, order);
    tiles.insert(tiles.end(), {tile.m, tile.n});
  }
  return numbers(std::move(tiles), {size_t{rows} * columns, 2});
}

// What the clusters of a launch compute, in the order in which it is handed out: whole tiles, then parts (gemm/tile_
// scheduler.h). Of each its batch index, row and column of cluster tiles, part, and into how many the tile is cut.
Numbers work_items(const GemmPlan& plan) {
  const Work& work = plan.work;
  const TileOrder order = tile_order(static_cast<uint32_t>(work.tiles_m), static_cast<uint32_t>(work.tiles_n),
                                     plan.config.swizzle, static_cast<Raster>(plan.config.raster));
  std::vector<int64_t> items;
  for (uint32_t i = 0; i < work.tiles; ++i) {
    const Tile tile = rasterise(i, order);
    const uint32_t parts = i < work.whole_tiles ? 1 : plan.config.split_k;
    for (uint32_t part = 0; part < parts; ++part) {
      items.insert(items.end(), {tile.batch, tile.m, tile.n, part, parts});
    }
  }
  return numbers(std::move(items), {work.items, 5});
}

// --- many configurations

using Column = nb::ndarray<nb::ro, int64_t, nb::ndim<1>, nb::c_contig, nb::device::cpu>;

// Reads a row of a table: columns by the names of JAXBW_CONFIG_FIELDS. Others are as they are by default.
class CandidateTable {
 public:
  // For a problem as it is launched.
  CandidateTable(const KernelFamily& family, const GemmProblem& launched, const nb::dict& columns, bool swap_ab)
      : family_(family), launched_(launched) {
#define JAXBW_FIELD(name, ...) \
  if (columns.contains(#name)) name##_ = column(columns[#name]);
    JAXBW_CONFIG_FIELDS(JAXBW_FIELD)
#undef JAXBW_FIELD
    base_.swap_ab = swap_ab;
    base_.span_tiles = span_tiles(launched);
    base_.scheduler = static_cast<uint32_t>(default_scheduler(family, launched.grouped));
  }

  size_t size() const { return size_; }

  GemmConfig row(size_t index, const std::vector<uint32_t>& resident) const {
    GemmConfig c = base_;
#define JAXBW_FIELD(name, ...) \
  if (name##_ != nullptr) c.name = static_cast<uint32_t>(name##_[index]);
    JAXBW_CONFIG_FIELDS(JAXBW_FIELD)
#undef JAXBW_FIELD
    c.b_tiles = b_tiles(launched_, c);
    if (c.accumulators == 0) c.accumulators = most_accumulators(family_, c);
    if (c.split_tail != 0 && c.cluster_size() < resident.size()) c.wave = resident[c.cluster_size()];
    if (c.block_m == 0 || c.block_n == 0 || c.cta_group == 0 || c.k_spans == 0) return c;
    c.b_columns = b_columns(family_, launched_, c);
    if (c.stages == 0) c.stages = max_stages(family_, c);
    return c;
  }

 private:
  const int64_t* column(nb::handle given) {
    auto array = nb::cast<Column>(given);
    if (size_ != kUnknown && size_ != array.shape(0)) throw nb::value_error("columns of different lengths");
    size_ = array.shape(0);
    return array.data();  // which the dict keeps
  }

  static constexpr size_t kUnknown = std::numeric_limits<size_t>::max();
  const KernelFamily& family_;
  const GemmProblem& launched_;
  GemmConfig base_;
  size_t size_ = kUnknown;
#define JAXBW_FIELD(name, ...) const int64_t* name##_ = nullptr;
  JAXBW_CONFIG_FIELDS(JAXBW_FIELD)
#undef JAXBW_FIELD
};

// What comes back of each row.
#define JAXBW_GRID_FIELDS(X) \
  X(legal)                   \
  X(kernel)                  \
  X(stages)                  \
  X(rows)                    \
  X(columns)                 \
  X(cluster_rows)            \
  X(cluster_columns)         \
  X(tiles_m)                 \
  X(tiles_n)                 \
  X(tiles)                   \
  X(resident)                \
  X(whole_tiles)             \
  X(whole_waves)             \
  X(part_waves)              \
  X(part_rounds)             \
  X(parts)                   \
  X(items)                   \
  X(accumulators)            \
  X(most_accumulators)       \
  X(held_columns)            \
  X(skinny)                  \
  X(general)                 \
  X(gathered)

enum class GridField : size_t {
#define JAXBW_FIELD(name) name,
  JAXBW_GRID_FIELDS(JAXBW_FIELD)
#undef JAXBW_FIELD
};

// How the sums of split tiles come together: by the last warp, by all that are there, by a launch behind.
enum class Gathered : int64_t { kLast = 0, kShared = 1, kApart = 2 };

Gathered gathered(const KernelFamily& family, const GemmConfig& c) {
  if (reduces_apart(family, c)) return Gathered::kApart;
  return family.is_sm90() && c.split_k >= kMinSharedParts ? Gathered::kShared : Gathered::kLast;
}

// Whether there is something to count, be it legal or not.
bool has_tile(const GemmProblem& p, const GemmConfig& c) {
  return c.cta_group != 0 && c.cta_rows() != 0 && tile_columns(p, c) != 0 && c.cluster_size() != 0 && c.split_k != 0 &&
         c.k_spans != 0 && (c.split_tail == 0 || c.wave != 0);
}

nb::dict plan_many(const std::string& family_name, const GemmProblem& problem, const nb::dict& columns, bool swap_ab,
                   const std::vector<uint32_t>& resident) {
  const KernelFamily& family = family_named(family_name);
  GemmConfig side;
  side.swap_ab = swap_ab;
  const GemmProblem launched = as_launched(problem, side);
  const CandidateTable table(family, launched, columns, swap_ab);
  const size_t count = table.size();
  const InstancesOfProblem instances(family, launched);
  const bool sound = !check_problem(family, problem);
  constexpr size_t kFields = static_cast<size_t>(GridField::gathered) + 1;
  std::vector<int64_t> values(kFields * count);
  for (size_t i = 0; i < count; ++i) {
    const auto set = [&](GridField field, uint64_t value) {
      values[static_cast<size_t>(field) * count + i] = static_cast<int64_t>(value);
    };
    const GemmConfig c = table.row(i, resident);
    const KernelInstance* instance = has_tile(launched, c) ? instances.find(c) : nullptr;
    set(GridField::kernel, instance == nullptr ? uint64_t(-1) : instance - kKernelInstances);
    set(GridField::stages, c.stages);
    if (!has_tile(launched, c)) continue;
    const Work work = work_of(family, launched, c);
    set(GridField::legal, sound && instance != nullptr && !check_config(family, c) &&
                              !check_launched(family, launched, c) && !check_work(work, launched, c) &&
                              !check_served(family, instances, *instance, launched, c));
    const uint64_t split = work.tiles - work.whole_tiles, parts = split * c.split_k;
    const bool skinny = instance != nullptr && instance->is_skinny();
    const uint64_t to_an_sm = skinny ? skinny_ctas_per_sm(skinny_tile(c), c.cluster_k) : 1;
    const uint64_t at_a_time = to_an_sm * (c.cluster_size() < resident.size() ? resident[c.cluster_size()] : 1);
    const uint64_t part_waves = ceil_div(parts, at_a_time);
    set(GridField::rows, c.cta_rows());
    set(GridField::columns, c.cta_columns());
    set(GridField::cluster_rows, c.cluster_m * c.cta_rows());
    set(GridField::cluster_columns, c.cluster_n * tile_columns(launched, c));
    set(GridField::tiles_m, work.tiles_m);
    set(GridField::tiles_n, work.tiles_n);
    set(GridField::tiles, work.tiles);
    set(GridField::resident, at_a_time);
    set(GridField::whole_tiles, work.whole_tiles);
    set(GridField::whole_waves, ceil_div(work.whole_tiles, at_a_time));
    set(GridField::part_waves, part_waves);
    set(GridField::part_rounds, ceil_div(part_waves, c.split_k));
    set(GridField::parts, parts);
    set(GridField::items, work.items);
    set(GridField::accumulators, min_accumulators(family, c));
    set(GridField::most_accumulators, c.accumulators);
    set(GridField::held_columns, held_columns(launched, c));
    const uint32_t in_ring = residual_stages(family, launched, c, 0);
    set(GridField::skinny, skinny);
    set(GridField::general, !skinny && epilogue_path(family, launched, c, in_ring, 0) == EpiloguePath::kGeneral);
    set(GridField::gathered, static_cast<uint64_t>(gathered(family, c)));
  }
  auto* data = new std::vector<int64_t>(std::move(values));
  nb::capsule owner(data, [](void* data) noexcept { delete static_cast<std::vector<int64_t>*>(data); });
  nb::dict named;
#define JAXBW_FIELD(name) \
  named[#name] = Numbers(data->data() + static_cast<size_t>(GridField::name) * count, {count}, owner);
  JAXBW_GRID_FIELDS(JAXBW_FIELD)
#undef JAXBW_FIELD
  return named;
}

nb::dict limits(const std::string& family_name) {
  const KernelFamily& family = family_named(family_name);
  nb::dict named;
  named["max_cluster"] = family.max_cluster_size;
  named["max_cluster_k"] = family.max_cluster_k;
  named["max_split"] = family.max_split_k;
  named["max_swizzle"] = kMaxSwizzle;
  named["min_shared_parts"] = family.is_sm90() ? kMinSharedParts : family.max_split_k + 1;
  named["min_reduced_parts"] = family.is_sm90() ? kMinReducedParts : family.max_split_k + 1;
  std::vector<const char*> schedulers{kSchedulers[static_cast<uint32_t>(family.scheduler)]};
  for (const char* name : kSchedulers) {
    const bool is_there = name != schedulers[0] && (name != std::string_view("clc") || !family.is_sm90());
    if (is_there) schedulers.push_back(name);
  }
  named["schedulers"] = schedulers;
  return named;
}

std::string rule_name(const Violation& violation) { return name(violation.rule); }

}  // namespace

void bind_plan(nb::module_& m) {
  nb::enum_<Grouped>(m, "Grouped")
      .value("NONE", Grouped::kNone)
      .value("ROWS", Grouped::kRows)
      .value("CONTRACTION", Grouped::kContraction);
  nb::class_<GemmProblem>(m, "Problem")
      .def(
          "__init__",
          [](GemmProblem* self, uint64_t batch, uint64_t rows, uint64_t n, uint64_t k, bool lhs_batched,
             bool rhs_batched, Major lhs_major, Major rhs_major, DataType lhs, DataType rhs, DataType output,
             bool promoted, float alpha, float beta, std::optional<DataType> c, std::optional<DataType> bias,
             bool bias_along_m, std::optional<DataType> residual, Activation activation, bool gated, bool save,
             bool factors_in_memory, bool lhs_scale, bool rhs_scale, uint32_t lhs_blocks, uint32_t rhs_blocks,
             uint32_t mx, bool out_scale, bool out_mx, Grouped grouped, uint64_t groups, uint64_t total_groups,
             uint64_t source_rows) {
            new (self) GemmProblem(make_problem(
                batch, rows, n, k, lhs_batched, rhs_batched, lhs_major, rhs_major, lhs, rhs, output, promoted, alpha,
                beta, c, bias, bias_along_m, residual, activation, gated, save, factors_in_memory, lhs_scale, rhs_scale,
                lhs_blocks, rhs_blocks, mx, out_scale, out_mx, grouped, groups, total_groups, source_rows));
          },
          nb::kw_only(), nb::arg("batch"), nb::arg("m"), nb::arg("n"), nb::arg("k"), nb::arg("lhs_batched") = true,
          nb::arg("rhs_batched") = true, nb::arg("lhs_major") = Major::kK, nb::arg("rhs_major") = Major::kMN,
          nb::arg("lhs") = DataType::kBF16, nb::arg("rhs") = DataType::kBF16, nb::arg("output") = DataType::kBF16,
          nb::arg("promoted") = false, nb::arg("alpha") = 1.0f, nb::arg("beta") = 0.0f, nb::arg("c") = nb::none(),
          nb::arg("bias") = nb::none(), nb::arg("bias_along_m") = false, nb::arg("residual") = nb::none(),
          nb::arg("activation") = Activation::kNone, nb::arg("gated") = false, nb::arg("save") = false,
          nb::arg("factors_in_memory") = false, nb::arg("lhs_scale") = false, nb::arg("rhs_scale") = false,
          nb::arg("lhs_blocks") = 0, nb::arg("rhs_blocks") = 0, nb::arg("mx") = 0, nb::arg("out_scale") = false,
          nb::arg("out_mx") = false, nb::arg("grouped") = Grouped::kNone, nb::arg("groups") = 1,
          nb::arg("total_groups") = 0, nb::arg("source_rows") = 0)
      .def("__repr__", [](const GemmProblem& p) { return concat("<Problem ", describe(p), ">"); });

  nb::class_<Violation>(m, "Violation")
      .def_prop_ro("rule", &rule_name)
      .def_prop_ro("fields",
                   [](const Violation& violation) {
                     nb::dict named;
                     for (const auto& [name, value] : violation.fields) named[name] = value;
                     return named;
                   })
      .def_ro("takes", &Violation::takes)
      .def("__str__", [](const Violation& violation) { return describe(violation); });

  const auto of_config = [](auto member) { return [member](const PlanOnDevice& p) { return p.plan.config.*member; }; };
  const auto of_work = [](auto member) { return [member](const PlanOnDevice& p) { return p.plan.work.*member; }; };
  nb::class_<PlanOnDevice>(m, "Plan")
      .def_prop_ro("kernel", [](const PlanOnDevice& p) { return std::string(p.plan.config.kernel); })
      .def_prop_ro("attributes", [](const PlanOnDevice& p) { return attributes_of(p.plan); })
      .def_prop_ro("block_k", [](const PlanOnDevice& p) { return block_k(p.plan.launched, p.plan.config); })
      .def_prop_ro("stages", of_config(&GemmConfig::stages))
      .def_prop_ro("accumulators", of_config(&GemmConfig::accumulators))
      .def_prop_ro("scheduler", [](const PlanOnDevice& p) { return kSchedulers[p.plan.config.scheduler]; })
      .def_prop_ro("resident", [](const PlanOnDevice& p) { return p.resident; })
      .def_prop_ro("cluster_ctas", [](const PlanOnDevice& p) { return p.plan.config.cluster_size(); })
      .def_prop_ro("clusters", [](const PlanOnDevice& p) { return p.clusters_on(p.resident); })
      .def("clusters_on", &PlanOnDevice::clusters_on, nb::arg("resident"))
      .def_prop_ro("threads", [](const PlanOnDevice& p) { return threads(*p.plan.family, p.plan.config); })
      .def_prop_ro("shared_memory",
                   [](const PlanOnDevice& p) { return shared_memory_bytes(*p.plan.family, p.plan.config); })
      .def_prop_ro("loaded_columns", [](const PlanOnDevice& p) { return p.plan.config.cta_columns(); })
      .def_prop_ro("cluster_rows",
                   [](const PlanOnDevice& p) { return p.plan.config.cluster_m * p.plan.config.cta_rows(); })
      .def_prop_ro(
          "cluster_columns",
          [](const PlanOnDevice& p) { return p.plan.config.cluster_n * tile_columns(p.plan.launched, p.plan.config); })
      .def_prop_ro("tiles_m", of_work(&Work::tiles_m))
      .def_prop_ro("tiles_n", of_work(&Work::tiles_n))
      .def_prop_ro("tiles", of_work(&Work::tiles))
      .def_prop_ro("whole_tiles", of_work(&Work::whole_tiles))
      .def_prop_ro("split_tiles", [](const PlanOnDevice& p) { return p.plan.work.tiles - p.plan.work.whole_tiles; })
      .def_prop_ro("parts", [](const PlanOnDevice& p) { return p.plan.work.items - p.plan.work.whole_tiles; })
      .def_prop_ro("items", of_work(&Work::items))
      .def_prop_ro("waves", [](const PlanOnDevice& p) { return p.plan.work.waves(p.resident); })
      .def_prop_ro(
          "work_items", [](const PlanOnDevice& p) { return work_items(p.plan); }, nb::rv_policy::move)
      .def_prop_ro("slices", of_work(&Work::slices))
      .def_prop_ro("slice_floats", of_work(&Work::slice_floats))
      .def_prop_ro("workspace_bytes", [](const PlanOnDevice& p) { return p.plan.workspace.bytes; })
      .def_prop_ro("workspace_offsets",
                   [](const PlanOnDevice& p) {
                     const WorkspaceLayout& layout = p.plan.workspace;
                     nb::dict named;
                     named["a"] = layout.a;
                     named["b"] = layout.b;
                     named["b_up"] = layout.b_up;
                     named["partials"] = layout.partials;
                     if (p.plan.launched.grouped != Grouped::kNone) {
                       named["group_table"] = layout.group_table;
                       named["group_places"] = layout.group_places;
                       named["group_counts"] = layout.group_counts;
                     }
                     return named;
                   })
      .def_prop_ro("counters", [](const PlanOnDevice& p) { return p.plan.counters(); })
      .def_prop_ro("repacked", [](const PlanOnDevice& p) { return nb::tuple(nb::cast(repacked(p.plan))); })
      .def_prop_ro("store_path",
                   [](const PlanOnDevice& p) {
                     constexpr const char* kNames[] = {"tma", "rows", "columns"};
                     return kNames[static_cast<uint32_t>(p.plan.epilogue.store_path)];
                   })
      .def_prop_ro("formula",
                   [](const PlanOnDevice& p) {
                     constexpr const char* kNames[] = {"general", "cast", "elementwise"};
                     return kNames[static_cast<uint32_t>(p.plan.epilogue.path)];
                   })
      .def_prop_ro("residual_stages", [](const PlanOnDevice& p) { return p.plan.epilogue.residual_stages; })
      .def_prop_ro("reduces_apart", [](const PlanOnDevice& p) { return reduces_apart(*p.plan.family, p.plan.config); });

  m.def("plan", &plan, nb::arg("family"), nb::arg("problem"), nb::arg("config"), nb::arg("resident") = 1);
  m.def("plan_many", &plan_many, nb::arg("family"), nb::arg("problem"), nb::arg("columns"), nb::kw_only(),
        nb::arg("swap_ab"), nb::arg("resident"));
  m.def(
      "check_problem",
      [](const std::string& family, const GemmProblem& problem) {
        return check_problem(family_named(family), problem);
      },
      nb::arg("family"), nb::arg("problem"));
  m.def("complete_config", &complete_config, nb::arg("family"), nb::arg("config"), nb::arg("problem") = nb::none());
  m.def("limits", &limits, nb::arg("family"));
  m.def("kernel_names", [] {
    std::vector<std::string> names;
    for (const KernelInstance& instance : kKernelInstances) names.emplace_back(instance.name);
    return names;
  });
  m.def("rules", [] {
    return std::vector<std::string>{
#define JAXBW_RULE(code, text) #code,
        JAXBW_RULES(JAXBW_RULE)
#undef JAXBW_RULE
    };
  });
  m.def("walk", &walk, nb::arg("rows"), nb::arg("columns"), nb::arg("swizzle"), nb::arg("raster"));
}

}  // namespace jaxbw
