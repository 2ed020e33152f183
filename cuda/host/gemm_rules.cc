// What may be launched, rule by rule (rules.h). See gemm.h. It is long because all rules stand together.
#include <algorithm>
#include <bit>
#include <set>
#include <tuple>
#include <utility>

#include "gemm/reduce.h"
#include "gemm/sm100_cluster_sum.h"
#include "host/gemm_instances.h"
#include "host/gemm_launch.h"

namespace jaxbw {
namespace {

constexpr KernelFamily kFamilies[] = {
    {.name = "sm90",
     .epilogue = kSm90Epilogue,
     .threads = threads_of("sm90", "gemm"),
     .max_cluster_size = 8,
     .max_cluster_k = 8,
     .max_split_k = 64,
     .max_accumulators = 1,
     .scheduler = LaunchScheduler::kStatic,
     .dynamic = LaunchScheduler::kNone,
     .min_stages = 2,
     .compute_major = 9,
     .compute_minor = 0,
     .gpus = "compute capability 9.0 (H100, H200, GH200)"},
    {.name = "sm100",
     .epilogue = kSm100Epilogue,
     .threads = threads_of("sm100", "gemm"),
     .max_cluster_size = 16,
     .max_cluster_k = 16,
     .max_split_k = 16,
     .max_accumulators = 2,
     .scheduler = LaunchScheduler::kClc,
     .dynamic = LaunchScheduler::kClc,
     .min_stages = 1,
     .compute_major = 10,
     .compute_minor = -1,
     .gpus = "compute capability 10.x (B200, GB200, B300)"},
};

static_assert(std::ranges::all_of(kKernelInstances, [](const KernelInstance& instance) {
  return !instance.is_skinny() || skinny_tile(instance.rows, instance.columns).threads() == instance.threads;
}));

constexpr uint64_t kMaxExtent = 0x7fffffff;  // TMA coordinates are int32 (PTX 5.5.3), and so is gridDim.x
constexpr uint64_t kMaxStride = 1ull << 40;  // bytes; CUtensorMap's are less
constexpr uint64_t kMaxArray = 1ull << 56;   // bytes: virtual addresses
constexpr uint32_t kMaxMmaN = 256;           // columns of an MMA: PTX 9.7.16.2.1
constexpr uint32_t kGatedStep = 32;

bool is_known(DataType type) { return type <= DataType::kF32 || type == DataType::kE4M3 || type == DataType::kE5M2; }
bool is_operand(DataType type) { return is_known(type) || type == DataType::kE2M1; }

Violation broken(Rule rule, std::vector<std::pair<const char*, int64_t>> fields = {},
                 std::vector<uint32_t> takes = {}) {
  return {rule, std::move(fields), std::move(takes)};
}

// Spans of K in a stage of sm_90. Tiles of few rows, whose elements have 16 bits, say so, where there are such.
uint32_t sm90_k_spans(const KernelFamily& family, const GemmConfig& c) {
  const uint32_t depth = is_skinny(family, c) ? skinny_tile(c).depth : 0;
  return depth == 0 ? 1 : depth / span_elements(DataType::kBF16);
}

// --- rules of a configuration alone

Verdict check_sm90_tile(const KernelFamily& family, const GemmConfig& c) {
  if (c.cta_group != 1) return broken(Rule::cta_group_sm90, {{"cta_group", c.cta_group}});
  if (const std::set<CtaTile>& tiles = sm90_tiles(c.pingpong != 0); !tiles.contains({c.block_m, c.block_n})) {
    const std::vector<uint32_t> columns = columns_of(tiles, c.block_m);
    if (!columns.empty()) {
      return broken(Rule::block_n_sm90, {{"block_n", c.block_n}, {"block_m", c.block_m}, {"pingpong", c.pingpong}},
                    columns);
    }
    std::set<uint32_t> rows;
    for (const CtaTile& tile : tiles) rows.insert(tile.first);
    return broken(Rule::block_m_sm90, {{"block_m", c.block_m}, {"pingpong", c.pingpong}}, {rows.begin(), rows.end()});
  }
  if (c.k_spans != sm90_k_spans(family, c)) {
    return broken(Rule::k_spans_sm90, {{"k_spans", c.k_spans}, {"spans", sm90_k_spans(family, c)}});
  }
  return {};
}

// The shapes of tcgen05.mma (PTX 9.7.16.2.1), and of its accumulators as the epilogue cuts them (sm100_slice).
Verdict check_sm100_tile(const GemmConfig& c) {
  if (c.pingpong != 0) return broken(Rule::pingpong_sm100);
  if (c.cta_group != 1 && c.cta_group != 2) return broken(Rule::cta_group, {{"cta_group", c.cta_group}});
  const uint32_t rows = c.cta_rows();
  if (c.block_m % c.cta_group != 0 || (rows != 64 && rows != 128 && rows != 256)) {
    return broken(Rule::block_m, {{"block_m", c.block_m}, {"cta_group", c.cta_group}},
                  {64 * c.cta_group, 128 * c.cta_group, 256 * c.cta_group});
  }
  const uint32_t step = rows != 64 ? 16 : c.cta_group == 1 ? 8 : 32;
  if (c.block_n == 0 || c.block_n % step != 0 || c.block_n > kMaxMmaN) {
    return broken(Rule::block_n, {{"block_n", c.block_n},
                                  {"block_m", c.block_m},
                                  {"cta_group", c.cta_group},
                                  {"step", step},
                                  {"most", kMaxMmaN}});
  }
  if (c.accumulators < sm100_mma_tiles(rows)) {
    return broken(Rule::accumulators_full, {{"block_m", c.block_m}});
  }
  return {};
}

// The fewest spans that are so deep, whatever the operands; 0 where there are none.
uint32_t spans_of_any(uint32_t block_k) {
  for (const DataType type : {DataType::kE2M1, DataType::kE4M3, DataType::kBF16, DataType::kF32}) {
    const uint32_t span = span_elements(type);
    if (block_k % span == 0 && block_k <= kMaxKSpans * span) return block_k / span;
  }
  return 0;
}

// Of such a block, for a problem or, where that is null, for any.
Planned<uint32_t> spans_of(const KernelFamily& family, const GemmConfig& c, uint32_t block_k,
                           const GemmProblem* problem) {
  const uint32_t span = span_elements(problem ? counted_type(*problem) : DataType::kBF16);
  if (family.is_sm90()) {
    const uint32_t spans = sm90_k_spans(family, c);
    const bool of_others = problem == nullptr && !is_skinny(family, c) &&
                           (block_k == span_elements(DataType::kE4M3) || block_k == span_elements(DataType::kF32));
    if (block_k == span * spans || of_others) return spans;
    return broken(Rule::block_k_sm90, {{"block_k", block_k}, {"span", span * spans}});
  }
  if (problem == nullptr) {
    const uint32_t spans = spans_of_any(block_k);
    if (spans == 0) return broken(Rule::block_k_of_any, {{"block_k", block_k}, {"spans", kMaxKSpans}});
    return spans;
  }
  if (block_k == 0 || block_k % span != 0 || block_k > kMaxKSpans * span) {
    return broken(
        Rule::block_k,
        {{"block_k", block_k}, {"span", span}, {"most", kMaxKSpans * span}, {"itemsize", size_bytes(problem->a_type)}});
  }
  return block_k / span;
}

// On sm_90 a power of two, so that the CTAs of a tile own equal shares of its slices.
bool takes_cluster_k(const KernelFamily& family, uint32_t parts) {
  return parts > 0 && parts <= family.max_cluster_k && (!family.is_sm90() || std::has_single_bit(parts));
}

// See sm100_cluster_sum.cuh.
Verdict check_cluster_k_sm100(const GemmConfig& c) {
  const std::pair<const char*, int64_t> parts = {"cluster_k", c.cluster_k};
  if (c.swap_ab == 0 || c.cta_group != 1 || c.split_k != 1) return broken(Rule::cluster_k_sm100, {parts});
  const uint32_t rows = c.cta_rows();
  if (sm100_mma_tiles(rows) == 1 && sums_fit(sm100_slice(0, rows, c.block_n, 1).rows, c.block_n, c.cluster_k))
    return {};
  return broken(Rule::cluster_sums_sm100, {parts, {"block_m", c.block_m}, {"block_n", c.block_n}});
}

Verdict check_cluster_k(const KernelFamily& family, const GemmConfig& c) {
  if (c.cluster_k == 1) return {};
  if (!takes_cluster_k(family, c.cluster_k)) {
    std::vector<uint32_t> takes;
    for (uint32_t parts = 1; parts <= family.max_cluster_k; ++parts) {
      if (takes_cluster_k(family, parts)) takes.push_back(parts);
    }
    return broken(Rule::cluster_k, {{"cluster_k", c.cluster_k}}, takes);
  }
  if (c.cluster_size() > family.max_cluster_size) {
    return broken(Rule::cluster_size, {{"cluster_m", c.cluster_m},
                                       {"cluster_n", c.cluster_n},
                                       {"cluster_k", c.cluster_k},
                                       {"ctas", c.cluster_size()},
                                       {"most", family.max_cluster_size}});
  }
  if (!family.is_sm90()) return check_cluster_k_sm100(c);
  if (is_skinny(family, c)) return {};
  if (const uint32_t rows = family.epilogue.rows_per_warp; c.block_m % (c.cluster_k * rows) != 0) {
    return broken(Rule::cluster_slices, {{"cluster_k", c.cluster_k}, {"rows", rows}, {"block_m", c.block_m}});
  }
  return {};
}

struct Range {
  Rule rule;
  const char* name;
  uint32_t value, first, last;
};

Verdict check_ranges(const KernelFamily& family, const GemmConfig& c) {
  const uint32_t schedulers = static_cast<uint32_t>(LaunchScheduler::kNone);
  const Range ranges[] = {
      {Rule::k_spans, "k_spans", c.k_spans, 1, kMaxKSpans},
      {Rule::pingpong, "pingpong", c.pingpong, 0, 1},
      {Rule::swizzle, "swizzle", c.swizzle, 1, kMaxSwizzle},
      {Rule::raster, "raster", c.raster, 0, 1},
      {Rule::split_k, "split_k", c.split_k, 1, family.max_split_k},
      {Rule::split_tail, "split_tail", c.split_tail, 0, 1},
      {Rule::wave, "wave", c.wave, c.split_tail, c.split_tail != 0 ? uint32_t{kMaxExtent} : 0},
      {Rule::swap_ab, "swap_ab", c.swap_ab, 0, 1},
      {family.is_sm90() ? Rule::accumulators_sm90 : Rule::accumulators, "accumulators", c.accumulators, 1,
       family.max_accumulators},
      {Rule::scheduler, "scheduler", c.scheduler, 0, schedulers},
  };
  for (const auto& [rule, name, value, first, last] : ranges) {
    if (value < first || value > last) {
      return broken(rule, {{name, value}, {"first", first}, {"last", last}, {"most", last}});
    }
  }
  if (c.split_tail != 0 && c.split_k == 1) return broken(Rule::split_tail_whole);
  return {};
}

Verdict check_stages(const KernelFamily& family, const GemmConfig& c) {
  const uint32_t most = max_stages(family, c), least = min_stages(family, c);
  const std::pair<const char*, int64_t> tile[] = {
      {"block_m", c.block_m}, {"block_n", c.block_n}, {"k_spans", c.k_spans}};
  if (most == 0 && c.span_tiles != 0 && c.accumulators > most_accumulators(family, c)) {
    return broken(Rule::mx_accumulators, {tile[1], {"accumulators", c.accumulators}});
  }
  if (most == 0) return broken(Rule::stage, {tile[0], tile[1], tile[2]});
  if (least > most) return broken(Rule::cluster_sums, {tile[0], tile[1], {"cluster_k", c.cluster_k}});
  if (c.stages < least || c.stages > most) {
    return broken(Rule::stages, {tile[0], tile[1], tile[2], {"stages", c.stages}, {"least", least}, {"most", most}});
  }
  return {};
}

// --- rules of a configuration for a problem

// What kernels of MX formats leave out, and what Tensor Memory holds beside their accumulators.
Verdict check_mx(const GemmProblem& p, const GemmConfig& c) {
  if (c.cta_rows() != kTmemLanes) return broken(Rule::mx_rows, {{"block_m", c.block_m}}, {kTmemLanes * c.cta_group});
  if (c.block_n % kMxColumnStep != 0) {
    return broken(Rule::mx_columns, {{"block_n", c.block_n}, {"step", kMxColumnStep}});
  }
  const bool narrow = c.cta_group == 1 && c.block_n == kMxNarrowGatedColumns;
  if (p.gated && c.block_n != kMxGatedColumns && !narrow) {
    std::vector<uint32_t> takes{kMxGatedColumns};
    if (c.cta_group == 1) takes.insert(takes.begin(), kMxNarrowGatedColumns);
    return broken(Rule::mx_gated, {{"block_n", c.block_n}, {"cta_group", c.cta_group}}, takes);
  }
  if (c.cluster_k != 1) return broken(Rule::mx_cluster_k);
  if (!p.out_mx) return {};
  if (c.swap_ab != 0) return broken(Rule::out_mx_swap);
  if (tile_columns(p, c) % kScaleTileRows != 0) {  // whole tiles of scales, which are as wide as high
    return broken(Rule::out_mx_columns, {{"block_n", c.block_n}, {"step", kScaleTileRows * (p.gated ? 2 : 1)}});
  }
  return {};
}

// As the user named it.
int64_t operand_number(RuleOperand launched, const GemmConfig& c) {
  if (c.swap_ab == 0 || launched == RuleOperand::kResult) return static_cast<int64_t>(launched);
  return static_cast<int64_t>(launched == RuleOperand::kLhs ? RuleOperand::kRhs : RuleOperand::kLhs);
}

// An operand's tile is cut into boxes, see tensor_map.cc, and each box's rows are divided among the CTAs that share it.
Verdict check_boxes(const KernelFamily& family, RuleOperand which, const Operand& operand, const GemmConfig& c,
                    uint32_t extent, uint32_t peers) {
  const Operand read = operand.as_read();
  const uint32_t step = (family.is_sm90() ? kHalfSpan : kSwizzleSpan) / size_bytes(read.type);
  if (read.major == Major::kMN && extent % step != 0) {
    return broken(Rule::columns, {{"operand", operand_number(which, c)}, {"extent", extent}, {"step", step}});
  }
  const uint32_t rows = operand_tile(read.major, read.type, extent, c.k_spans).rows;
  if (rows % (peers * kSwizzleRows) != 0) {
    return broken(Rule::shares,
                  {{"operand", operand_number(which, c)}, {"peers", peers}, {"rows", rows}, {"group", kSwizzleRows}});
  }
  if (rows / peers > kMaxBoxRows) {
    return broken(Rule::box_rows,
                  {{"operand", operand_number(which, c)}, {"rows", rows / peers}, {"most", kMaxBoxRows}});
  }
  return {};
}

// Kernels of few rows read 16 bytes at a time. The only row of an operand is not copied, whatever its bytes, as TMA
// takes it: its end may be in the middle of 16.
Verdict check_single_row(RuleOperand which, const Operand& operand) {
  const uint64_t bytes = operand.row_bytes();
  if (operand.repacked() || bytes % kTmaAlignment == 0) return {};
  return broken(Rule::skinny_row, {{"operand", static_cast<int64_t>(which)},
                                   {"bytes", static_cast<int64_t>(bytes)},
                                   {"unit", static_cast<int64_t>(kTmaAlignment)}});
}

Verdict check_gated(const KernelFamily& family, const GemmConfig& c) {
  if (c.swap_ab != 0) return broken(Rule::gated_swap);
  if (!family.is_sm90() && c.cta_group == 2 && c.cta_rows() == 64) return broken(Rule::gated_pair);
  if (family.is_sm90() && c.block_n % kSm90GatedStep != 0) {
    return broken(Rule::gated_columns_sm90, {{"block_n", c.block_n}}, {kSm90GatedStep, 2 * kSm90GatedStep});
  }
  if (c.block_n % kGatedStep != 0) return broken(Rule::gated_columns, {{"block_n", c.block_n}, {"step", kGatedStep}});
  return {};
}

// PTX 9.7.16.2.1: the columns of an MMA whose B has 8 bits and is MN-major.
Verdict check_8bit_columns(const KernelFamily& family, const GemmProblem& p, const GemmConfig& c) {
  const uint32_t step = 16 * c.cta_group;
  if (family.is_sm90() || !is_8bit(p.b_type) || p.b_major == Major::kK || c.block_n % step == 0) return {};
  return broken(Rule::columns_8bit, {{"operand", operand_number(RuleOperand::kRhs, c)},
                                     {"block_n", c.block_n},
                                     {"cta_group", c.cta_group},
                                     {"step", step}});
}

// sm_100: a warp stages rows of 16 bytes at least; where D is column-major, it stages none.
Verdict check_result_columns(const KernelFamily& family, const GemmProblem& p, const GemmConfig& c) {
  const bool staged = !family.is_sm90() && is_8bit(p.output) && c.swap_ab == 0;
  if (!staged || c.block_n % kTmaAlignment == 0) return {};
  return broken(Rule::columns_of_result, {{"block_n", c.block_n}, {"step", kTmaAlignment}});
}

Verdict check_parts(const GemmProblem& p, const GemmConfig& c) {
  const uint64_t blocks = ceil_div(p.k, block_k(p, c));
  if (c.split_k * c.cluster_k <= blocks) return {};
  return broken(c.cluster_k > 1 ? Rule::parts_of_cluster : Rule::parts, {{"split_k", c.split_k},
                                                                         {"cluster_k", c.cluster_k},
                                                                         {"blocks", static_cast<int64_t>(blocks)},
                                                                         {"block_k", block_k(p, c)},
                                                                         {"k", static_cast<int64_t>(p.k)}});
}

// What tensor maps, and the 32-bit sizes of the kernels, can hold.
Verdict check_extents(RuleOperand array, DataType type, uint64_t batch, uint64_t rows, uint64_t columns) {
  const std::pair<const char*, int64_t> operand = {"operand", static_cast<int64_t>(array)};
  if (columns > kMaxExtent || rows > kMaxExtent || batch > kMaxExtent) return broken(Rule::extent, {operand});
  const uint64_t matrix = ceil_div(columns / packing(type) * size_bytes(type), kTmaAlignment) * kTmaAlignment * rows;
  if (columns > kMaxStride / rows || matrix >= kMaxStride) return broken(Rule::stride, {operand});
  if (matrix > kMaxArray / batch) return broken(Rule::address_space, {operand});
  return {};
}

Verdict check_extents(RuleOperand array, const Operand& operand) {
  const Operand read = operand.as_read();
  return check_extents(array, read.type, read.batch, read.rows(), read.columns());
}

// What the promotion of sums multiplies (sm90_block_scales.cuh).
Verdict check_block_scales(const KernelFamily& family, const GemmProblem& p) {
  if (p.a_blocks == 0 && p.b_blocks == 0) return {};
  if (!family.is_sm90()) return broken(Rule::block_scales_sm100);
  if (!is_8bit(p.a_type) || !p.promoted) return broken(Rule::block_scales_8bit);
  if (p.gated) return broken(Rule::block_scales_gated);
  if (p.a_blocks > 1) return broken(Rule::block_scales_rows);
  if (p.b_blocks == 1) return broken(Rule::block_scales_columns);
  return {};
}

// Those with a scale for each block of K, and numbers that share a byte, whose rows TMA loads as they are.
Verdict check_formats(const KernelFamily& family, const GemmProblem& p) {
  if (p.mx != 0) {
    if (family.is_sm90() || !is_8bit(p.a_type)) return broken(Rule::mx);
    if (p.mx != kMxBlock && (p.mx != kNvBlock || packing(counted_type(p)) == 1))
      return broken(Rule::mx_block, {{"block", p.mx}});
    // NVFP4's global scales are factors; but of gate and up, which have one each, and of groups, as each may have one,
    // they are scales of columns.
    const bool of_columns = p.grouped == Grouped::kNone ? p.gated : p.mx == kNvBlock;
    if (p.a_scaled || (p.b_scaled && !of_columns)) return broken(Rule::mx);
  }
  for (const auto& [operand, type, major] :
       {std::tuple(RuleOperand::kLhs, p.a_type, p.a_major), std::tuple(RuleOperand::kRhs, p.b_type, p.b_major)}) {
    const uint64_t step = kTmaAlignment * packing(type);
    if (packing(type) == 1 || (p.mx != 0 && major == Major::kK && p.k % step == 0)) continue;
    return broken(Rule::mx_4bit, {{"operand", static_cast<int64_t>(operand)}, {"step", static_cast<int64_t>(step)}});
  }
  return {};
}

// Rows are addressed by TMA from the end of their group on (gemm/groups.h).
Verdict check_grouped(const KernelFamily& family, const GemmProblem& p) {
  const bool of_rows = p.grouped == Grouped::kRows, narrow = is_8bit(p.a_type);
  if (p.gathered() && (!of_rows || p.batch != 1)) return broken(Rule::gathered);
  const bool layouts = of_rows ? p.a_major == Major::kK : p.a_major == Major::kMN && p.b_major == Major::kMN;
  const bool k_major = narrow && family.is_sm90();
  const bool types = (narrow || size_bytes(p.a_type) == 2) && !is_8bit(p.output);
  if (!layouts || !types || (k_major && !of_rows)) return broken(Rule::no_kernel);
  const bool mx_rows = of_rows && !p.gathered() && p.batch == 1 && packing(p.a_type) <= packing(p.b_type);
  if (p.mx != 0 && !mx_rows) return broken(Rule::grouped_mx);
  if (k_major && p.b_major == Major::kMN) return broken(Rule::grouped_8bit_major);
  // What is elementwise whatever the tile. (Of a grouped contraction there is no row of a bias to a group, nor a
  // scale.)
  const bool scales = narrow && of_rows ? p.a_blocks == 0 && p.b_blocks == 0 : !p.a_scaled && !p.b_scaled;
  const bool elementwise = !p.factors_in_memory && scales && !p.residual && !p.save && !p.bias_along_m &&
                           p.activation != Activation::kGeluExact;
  const bool of_rows_only = p.bias || p.gated;
  const bool added = p.c == DataType::kF32 && p.output == DataType::kF32 && p.beta == 1 &&
                     p.activation == Activation::kNone && !of_rows;
  if (!elementwise || (of_rows_only && !of_rows) || (p.c && !added)) return broken(Rule::grouped_epilogue);
  const std::tuple<RuleOperand, uint64_t, uint64_t> rows[] = {
      {RuleOperand::kLhs, operand_a(p).row_bytes(), kTmaAlignment},
      {RuleOperand::kRhs, operand_b(p).row_bytes(), is_mixed(p) ? kPaddedRow : kTmaAlignment},
      {RuleOperand::kResult, p.n * size_bytes(p.output), kTmaAlignment}};
  for (const auto& [array, bytes, unit] : rows) {
    if (bytes % unit != 0) {
      return broken(Rule::grouped_alignment, {{"operand", static_cast<int64_t>(array)},
                                              {"bytes", static_cast<int64_t>(bytes)},
                                              {"unit", static_cast<int64_t>(unit)}});
    }
    if (bytes >= kRaggedWrap) return broken(Rule::stride, {{"operand", static_cast<int64_t>(array)}});
  }
  if (p.grouped_rows() > kRaggedRows || p.grouped_rows() > (kRaggedExtent - 1) / p.batch) {
    return broken(Rule::grouped_rows, {{"rows", static_cast<int64_t>(p.grouped_rows())},
                                       {"batch", static_cast<int64_t>(p.batch)},
                                       {"most", kRaggedRows}});
  }
  if (p.total_groups > kMaxExtent) return broken(Rule::extent, {{"operand", static_cast<int64_t>(RuleOperand::kRhs)}});
  return {};
}

// What the grouped kernels leave out, see sm90_grouped.cuh and sm100_grouped.cuh.
Verdict check_grouped_config(const KernelFamily& family, const GemmProblem& p, const GemmConfig& c) {
  const bool may_split = family.is_sm90() && p.grouped == Grouped::kContraction;
  const bool whole = c.split_k == 1 || (may_split && c.split_tail != 0 && c.split_k < kMinSharedParts);
  if (c.cluster_size() != c.cta_group || !whole || c.swap_ab != 0 || c.raster != 0) return broken(Rule::grouped_config);
  if (family.is_sm90()) return {};
  const bool clc = static_cast<LaunchScheduler>(c.scheduler) == LaunchScheduler::kClc;
  const bool boxes = tile_columns(p, c) % kGroupedChunk == 0;
  const bool rows = c.cta_group == 1 ? c.block_m <= kTmemLanes : c.cta_rows() == kTmemLanes;
  if (clc || !boxes || c.k_spans != 1 || !rows) return broken(Rule::grouped_config_sm100);
  return {};
}

}  // namespace

const KernelFamily* find_family(std::string_view name) {
  for (const KernelFamily& family : kFamilies) {
    if (family.name == name) return &family;
  }
  return nullptr;
}

Verdict check_problem(const KernelFamily& family, const GemmProblem& p) {
  const bool no_groups = p.groups == 0 || (p.grouped != Grouped::kNone && p.total_groups == 0);
  if (p.m == 0 || p.n == 0 || p.k == 0 || p.batch == 0 || no_groups) return broken(Rule::empty);
  const bool known = is_operand(p.a_type) && is_operand(p.b_type) && is_known(p.output);
  if (!known || !multiplied_together(p.a_type, p.b_type)) return broken(Rule::dtype);
  if (p.activation > Activation::kGeluExact) {
    return broken(Rule::activation, {{"activation", static_cast<int64_t>(p.activation)}});
  }
  if (p.gated && p.c) return broken(Rule::gated_c);
  if (p.out_scaled && !is_8bit(p.output)) return broken(Rule::out_scale);
  if (p.out_mx && (p.mx == 0 || p.output != DataType::kE4M3 || p.out_scaled || p.save)) return broken(Rule::out_mx);
  if (Verdict verdict = check_block_scales(family, p)) return verdict;
  if (Verdict verdict = check_formats(family, p)) return verdict;
  Verdict verdict = check_extents(RuleOperand::kLhs, operand_a(family, p));
  if (!verdict) verdict = check_extents(RuleOperand::kRhs, operand_b(family, p));
  if (!verdict) verdict = check_extents(RuleOperand::kResult, p.output, p.results(), p.m, p.n);
  if (!verdict && p.grouped != Grouped::kNone) verdict = check_grouped(family, p);
  return verdict;
}

Verdict check_config(const KernelFamily& family, const GemmConfig& c) {
  Verdict verdict = check_ranges(family, c);
  if (!verdict) verdict = family.is_sm90() ? check_sm90_tile(family, c) : check_sm100_tile(c);
  if (verdict) return verdict;
  const uint32_t largest = family.max_cluster_size;
  if (c.cluster_m == 0 || c.cluster_n == 0 || c.cluster_m > largest || c.cluster_n > largest ||
      c.cluster_tiles() > largest) {
    return broken(Rule::cluster, {{"cluster_m", c.cluster_m}, {"cluster_n", c.cluster_n}, {"most", largest}});
  }
  if ((verdict = check_cluster_k(family, c))) return verdict;
  if (c.cluster_m % c.cta_group != 0) {
    return broken(Rule::cluster_group, {{"cluster_m", c.cluster_m}, {"cta_group", c.cta_group}});
  }
  if ((verdict = check_stages(family, c))) return verdict;
  const bool alone = c.cluster_tiles() == 1 && c.split_k == 1 && c.swap_ab == 0;
  if (is_skinny(family, c) && !alone) return broken(Rule::skinny, {{"block_m", c.block_m}});
  if (family.is_sm90() && static_cast<LaunchScheduler>(c.scheduler) == LaunchScheduler::kClc) {
    return broken(Rule::scheduler_clc, {{"scheduler", c.scheduler}});
  }
  return {};
}

Verdict check_launched(const KernelFamily& family, const GemmProblem& p, const GemmConfig& c) {
  Verdict verdict;
  if (p.grouped != Grouped::kNone) verdict = check_grouped_config(family, p, c);
  if (!verdict && p.mx != 0) verdict = check_mx(p, c);
  if (!verdict && p.gated) verdict = check_gated(family, c);
  if (!verdict && (p.a_blocks != 0 || p.b_blocks != 0) && c.swap_ab != 0) verdict = broken(Rule::block_scales_swap);
  if (is_skinny(family, c)) {
    const bool more = is_8bit(p.output) || p.reads_c() || p.save || p.a_scaled || p.b_scaled ||
                      p.activation == Activation::kGeluExact;
    if (!verdict && more) verdict = broken(Rule::skinny_epilogue, {{"block_m", c.block_m}});
    if (!verdict) verdict = check_single_row(RuleOperand::kLhs, operand_a(family, p));
    if (!verdict) verdict = check_single_row(RuleOperand::kRhs, operand_b(family, p));
  } else {
    if (!verdict) verdict = check_boxes(family, RuleOperand::kLhs, operand_a(family, p), c, a_extent(c), a_peers(c));
    if (!verdict) verdict = check_boxes(family, RuleOperand::kRhs, operand_b(family, p), c, b_extent(p, c), b_peers(c));
  }
  if (!verdict) verdict = check_8bit_columns(family, p, c);
  if (!verdict) verdict = check_result_columns(family, p, c);
  if (!verdict) verdict = check_stages(family, c);
  if (!verdict) verdict = check_parts(p, c);
  return verdict;
}

Planned<GemmConfig> complete(const KernelFamily& family, const ConfigRequest& request, const GemmProblem* problem) {
  GemmConfig c = request.given;
  if (request.batch_invariant && c.split_tail != 0) return broken(Rule::batch_invariant_tail);
  c.k_spans = family.is_sm90() ? sm90_k_spans(family, c) : 1;
  if (request.block_k) {
    const Planned<uint32_t> spans = spans_of(family, c, *request.block_k, problem);
    if (!spans.ok()) return spans.violation();
    c.k_spans = *spans;
  }
  c.span_tiles = problem == nullptr ? 0 : span_tiles(*problem);
  c.b_tiles = problem == nullptr ? 0 : b_tiles(*problem, c);
  c.accumulators = request.accumulators.value_or(most_accumulators(family, c));
  const Grouped grouped = problem == nullptr ? Grouped::kNone : problem->grouped;
  c.scheduler = static_cast<uint32_t>(request.scheduler.value_or(default_scheduler(family, grouped)));
  const bool has_tile = c.block_m != 0 && c.block_n != 0 && c.cta_group != 0;
  if (has_tile && problem != nullptr) c.b_columns = b_columns(family, as_launched(*problem, c), c);
  c.stages = request.stages.value_or(has_tile ? max_stages(family, c) : 0);
  return c;
}

}  // namespace jaxbw
