// Which kernels there are for a matmul, and which of them serves it. See gemm_instances.h.
#include "host/gemm_instances.h"

#include <ranges>

#include "host/operand.h"

namespace jaxbw {
namespace {

// The one whose warpgroups have what an instance computes.
CtaTile tile_of(const KernelInstance& instance, bool pingpong) {
  if (pingpong || instance.is_skinny()) return {instance.rows, instance.columns};
  const bool side_by_side = sm90_side_by_side(kSm90ConsumerWarpgroups * instance.rows * instance.columns);
  return side_by_side ? CtaTile{instance.rows, kSm90ConsumerWarpgroups * instance.columns}
                      : CtaTile{kSm90ConsumerWarpgroups * instance.rows, instance.columns};
}

// The tiles that instances have. Few rows are not computed in turns.
std::set<CtaTile> tiles_of(auto&& instances, bool pingpong) {
  std::set<CtaTile> tiles;
  for (const KernelInstance& instance : instances) {
    if (instance.columns != 0 && !(pingpong && instance.is_skinny())) tiles.insert(tile_of(instance, pingpong));
  }
  return tiles;
}

}  // namespace

const std::set<CtaTile>& sm90_tiles(bool pingpong) {
  static const std::set<CtaTile> shared = tiles_of(kKernelInstances, false),
                                 in_turns = tiles_of(kKernelInstances, true);
  return pingpong ? in_turns : shared;
}

std::vector<uint32_t> columns_of(const std::set<CtaTile>& tiles, uint32_t rows) {
  std::vector<uint32_t> columns;
  for (const CtaTile& tile : tiles) {
    if (tile.first == rows) columns.push_back(tile.second);
  }
  return columns;
}

const KernelFamily* family_of_kernel(std::string_view kernel) {
  const KernelInstance* instance = find_instance(kernel);
  return instance == nullptr || !instance->is_matmul() ? nullptr : find_family(instance->family);
}

Grouped grouped_by(std::string_view kernel, Major a_major) {
  const KernelInstance* instance = find_instance(kernel);
  if (instance == nullptr || !instance->has_groups()) return Grouped::kNone;
  return a_major == Major::kMN ? Grouped::kContraction : Grouped::kRows;
}

DataType operand_type(const KernelInstance& instance) {
  if (instance.input == "tf32") return DataType::kF32;
  if (instance.input.starts_with("4bit")) return DataType::kE2M1;
  return instance.input.starts_with("8bit") ? DataType::kE4M3 : DataType::kBF16;
}

InstancesOfProblem::InstancesOfProblem(const KernelFamily& family, const GemmProblem& launched) : family_(family) {
  const bool narrow = is_8bit(launched.a_type);
  std::string_view input = narrow ? "8bit" : launched.a_type == DataType::kF32 ? "tf32" : "16bit";
  if (family.is_sm90() && input == "16bit") input = launched.a_type == DataType::kF16 ? "f16" : "bf16";
  if (family.is_sm90() && narrow && launched.promoted) input = "8bit_promoted";
  if (launched.mx != 0) input = packing(counted_type(launched)) > 1 ? "4bit_mx" : "8bit_mx";
  const char layout[] = {operand_a(family, launched).as_read().major == Major::kK ? 'n' : 't',
                         operand_b(family, launched).as_read().major == Major::kMN ? 'n' : 't'};
  const auto add = [&](std::string_view role) {
    for (const KernelInstance& instance : kKernelInstances) {
      if (instance.family != family.name || instance.role != role) continue;
      if (instance.input != input) continue;
      if (instance.layout == "any" || instance.layout == std::string_view(layout, 2)) instances_.push_back(&instance);
    }
  };
  if (launched.grouped != Grouped::kNone) {
    add(launched.gathered() ? "gathered" : "grouped");
  } else {
    // In the order of find(): not all tiles have a kernel for all launches.
    for (const std::string_view role : {"skinny", "gemm", "plain", "cast", "elementwise", "fused"}) add(role);
  }
}

const KernelInstance* InstancesOfProblem::find(const GemmConfig& c) const {
  const bool skinny = is_skinny(family_, c);
  const WarpgroupTile part = skinny ? WarpgroupTile{c.block_m, c.block_n} : c.warpgroup_tile();
  for (const KernelInstance* instance : instances_) {
    if (instance->cta_group != c.cta_group || instance->is_skinny() != skinny) continue;
    if (instance->columns == 0 || (instance->columns == part.columns && instance->rows == part.rows)) return instance;
  }
  return nullptr;
}

Violation InstancesOfProblem::missing(const GemmConfig& c) const {
  const auto instances =
      std::views::transform(instances_, [](const KernelInstance* at) -> const KernelInstance& { return *at; });
  const std::vector<uint32_t> columns = columns_of(tiles_of(instances, c.pingpong != 0), c.block_m);
  if (columns.empty()) return {Rule::no_kernel};
  return {
      Rule::block_n_of_operands, {{"block_n", c.block_n}, {"block_m", c.block_m}, {"pingpong", c.pingpong}}, columns};
}

const KernelInstance* InstancesOfProblem::serving(const KernelInstance& of_tile, const GemmProblem& p,
                                                  const GemmConfig& c, const EpiloguePlan& epilogue) const {
  if (of_tile.has_groups() || of_tile.is_skinny()) return &of_tile;
  const bool whole = c.split_k == 1 && c.cluster_k == 1 && epilogue.store_path == StorePath::kTma;
  const bool casts = epilogue.path == EpiloguePath::kCast, more = p.save || epilogue.residual_stages != 0;
  const bool elementwise = whole && epilogue.path == EpiloguePath::kElementwise;
  const struct {
    bool serves;
    std::string_view role;
  } kernels[] = {{casts && whole, "plain"},
                 {casts, "cast"},
                 {elementwise && !more, "elementwise"},
                 {elementwise, "fused"},
                 {true, "gemm"}};
  for (const auto& [serves, role] : kernels) {
    if (!serves) continue;
    for (const KernelInstance* instance : instances_) {
      if (instance->role == role && instance->has_tile_of(of_tile)) return instance;
    }
  }
  return nullptr;
}

std::string_view kernel_without_tma(std::string_view kernel) {
  const KernelInstance& instance = *find_instance(kernel);
  if (!instance.for_whole_tiles()) return kernel;
  const KernelInstance* const cast = instance.role == "plain" ? find_instance(instance, "cast") : nullptr;
  const KernelInstance* const any = cast != nullptr ? cast : find_instance(instance, "gemm");
  return any == nullptr ? std::string_view() : any->name;
}

std::string_view repack_kernel(const KernelFamily& family, std::string_view kernel) {
  const uint32_t size = size_bytes(operand_type(*find_instance(kernel)));
  return find_companion(family.name, "repack", size == 4 ? "32bit" : size == 1 ? "8bit" : "16bit")->name;
}

std::string_view reduce_kernel(const KernelFamily& family) {
  return find_companion(family.name, "reduce", "f32")->name;
}

std::string_view group_table_kernel(const KernelFamily& family) {
  return find_companion(family.name, "group_table", "s32")->name;
}

}  // namespace jaxbw
