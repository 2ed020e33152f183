// What may be launched, and how a launch is described in a message. See gemm.h.
#include <algorithm>
#include <bit>

#include "host/gemm_launch.h"

namespace jaxbw {
namespace {

constexpr KernelFamily kFamilies[] = {
    {.name = "sm90",
     .epilogue = kSm90Epilogue,
     .threads = 384,
     .max_cluster_size = 8,
     .max_cluster_k = 8,
     .max_split_k = 64,
     .min_stages = 2,
     .compute_major = 9,
     .compute_minor = 0,
     .gpus = "compute capability 9.0 (H100, H200, GH200)"},
    {.name = "sm100",
     .epilogue = kSm100Epilogue,
     .threads = 256,
     .max_cluster_size = 16,
     .max_cluster_k = 1,
     .max_split_k = 16,
     .min_stages = 1,
     .compute_major = 10,
     .compute_minor = -1,
     .gpus = "compute capability 10.x (B200, GB200, B300)"},
};

constexpr uint64_t kMaxExtent = 0x7fffffff;  // TMA coordinates are int32 (PTX 5.5.3), and so is gridDim.x
constexpr uint64_t kMaxStride = 1ull << 40;  // bytes; CUtensorMap's are less
constexpr uint64_t kMaxArray = 1ull << 56;   // bytes: virtual addresses
constexpr uint32_t kMaxMmaN = 256;           // columns of an MMA: PTX 9.7.16.2.1
constexpr uint32_t kMaxTeamRows = 128;       // of accumulators that registers hold
// From so many parts on, sums that the whole GPU adds up are worth the launch.
constexpr uint32_t kMinReducedParts = 12;

const char* name(DataType type) { return type == DataType::kF16 ? "f16" : type == DataType::kBF16 ? "bf16" : "f32"; }

char layout_letter(bool row_major) { return row_major ? 'n' : 't'; }

const char* kind(DataType input) { return input == DataType::kF32 ? "tf32" : "16bit"; }

// An sm_90 instance has dtype, layout and tile in its code: another problem on it would read and write other memory
// than the tensor maps and the shared memory provide.
std::string required_kernel(const KernelFamily& family, const GemmProblem& problem, const GemmConfig& config) {
  if (!family.is_sm90()) return concat("jaxbw_sm100_", kind(problem.input), "_", config.cta_group, "cta");
  return concat("jaxbw_sm90_", name(problem.input), "_", layout_letter(problem.a_major == Major::kK),
                layout_letter(problem.b_major == Major::kMN), "_", config.team_rows(), "x", config.block_n);
}

// Whether a formula, whatever arrays it reads beside the bias, may be Formula::kElementwise. Once for each accumulator,
// the code of gelu_exact would be longer than all else.
bool allows_registers(const KernelFamily& family, const GemmProblem& p, const GemmConfig& c) {
  return family.is_sm90() && !p.c && !p.save && p.activation != Activation::kGeluExact &&
         (!p.gated || sm90_gated_in_boxes(c.block_n));
}

// --- rules of a configuration alone

Status check_sm90_tile(const GemmConfig& c) {
  if (c.cta_group != 1) return invalid("cta_group is ", c.cta_group, "; sm_90 has no CTA pairs");
  if (c.block_m == 0 || c.team_rows() % kWgmmaRows != 0 || c.team_rows() > kMaxTeamRows) {
    return invalid("block_m is ", c.block_m, "; with pingpong ", c.pingpong, " it is a multiple of ",
                   c.pingpong != 0 ? kWgmmaRows : kWgmmaRows * kSm90Teams);
  }
  if (c.block_n == 0 || c.block_n % kSm90Chunk != 0 || c.block_n > kMaxMmaN) {
    return invalid("block_n is ", c.block_n, "; it is a multiple of ", kSm90Chunk, " up to ", kMaxMmaN);
  }
  if (c.k_spans != 1) return invalid("k_spans is ", c.k_spans, "; the sm_90 kernels take 1");
  return Status();
}

// A power of two, so that the CTAs of a tile own equal shares of its slices.
Status check_cluster_k(const KernelFamily& family, const GemmConfig& c) {
  if (c.cluster_k == 1) return Status();
  if (!std::has_single_bit(c.cluster_k) || c.cluster_k > family.max_cluster_k) {
    return invalid("cluster_k is ", c.cluster_k, "; on ", family.name, " it is a power of two up to ",
                   family.max_cluster_k);
  }
  if (c.cluster_size() > family.max_cluster_size) {
    return invalid("a cluster of ", c.cluster_m, "x", c.cluster_n, " CTAs, ", c.cluster_k, " parts of K each; it has ",
                   "1 to ", family.max_cluster_size, " CTAs");
  }
  if (const uint32_t rows = c.cluster_k * family.epilogue.rows_per_warp; c.block_m % rows != 0) {
    return invalid("cluster_k is ", c.cluster_k, "; the CTAs share whole slices of ", family.epilogue.rows_per_warp,
                   " rows, and block_m is ", c.block_m);
  }
  return Status();
}

// The shapes of tcgen05.mma (PTX 9.7.16.2.1), and of its accumulators as the epilogue cuts them (sm100_slice).
Status check_sm100_tile(const GemmConfig& c) {
  if (c.pingpong != 0) return invalid("pingpong is 1; it is for sm_90");
  if (c.cta_group != 1 && c.cta_group != 2) return invalid("cta_group is ", c.cta_group, "; it is 1 or 2");
  const uint32_t rows = c.cta_rows();
  if (c.block_m % c.cta_group != 0 || (rows != 64 && rows != 128 && rows != 256)) {
    return invalid("block_m is ", c.block_m, "; each CTA of cta_group ", c.cta_group, " has 64, 128 or 256 rows");
  }
  const uint32_t step = rows != 64 ? 16 : c.cta_group == 1 ? 8 : 32;
  if (c.block_n == 0 || c.block_n % step != 0 || c.block_n > kMaxMmaN) {
    return invalid("block_n is ", c.block_n, "; with ", rows, " rows in each CTA of cta_group ", c.cta_group,
                   " it is a multiple of ", step, " up to ", kMaxMmaN);
  }
  return Status();
}

struct Range {
  const char* name;
  uint32_t value, first, last;
};

Status check_ranges(const KernelFamily& family, const GemmConfig& c) {
  const Range ranges[] = {
      {"k_spans", c.k_spans, 1, kMaxKSpans},
      {"pingpong", c.pingpong, 0, 1},
      {"swizzle", c.swizzle, 1, kMaxExtent},
      {"raster", c.raster, 0, 1},
      {"split_k", c.split_k, 1, family.max_split_k},
      {"split_tail", c.split_tail, 0, 1},
      {"wave", c.wave, c.split_tail, c.split_tail != 0 ? uint32_t{kMaxExtent} : 0},
      {"swap_ab", c.swap_ab, 0, 1},
      {"accumulators", c.accumulators, 1, 2},
      {"scheduler", c.scheduler, 0, static_cast<uint32_t>(LaunchScheduler::kNone)},
  };
  for (const auto& [name, value, first, last] : ranges) {
    if (value < first || value > last) return invalid(name, " is ", value, "; it is ", first, " to ", last);
  }
  return Status();
}

// --- rules of a configuration for a problem

// An operand's tile is cut into boxes, see tensor_map.cc, and each box's rows are divided among the CTAs that share it.
Status check_boxes(const KernelFamily& family, const Operand& operand, const GemmConfig& c, uint32_t extent,
                   uint32_t peers) {
  const Operand read = operand.as_read();
  const uint32_t step = (family.is_sm90() ? kHalfSpan : kSwizzleSpan) / size_bytes(read.type);
  if (read.major == Major::kMN && extent % step != 0) {
    return invalid(operand.name, " is MN-major and its tile is ", extent, " wide; it is loaded in columns of ", step);
  }
  const uint32_t rows = operand_tile(read.major, read.type, extent, c.k_spans).rows;
  if (rows % (peers * kSwizzleRows) != 0) {
    return invalid(operand.name, " is shared by ", peers, " CTAs, which cannot load equal parts of ", rows,
                   " rows in groups of ", kSwizzleRows);
  }
  return Status();
}

Status check_gated(const KernelFamily& family, const GemmProblem& p, const GemmConfig& c) {
  if (c.swap_ab != 0) return invalid("swap_ab does not go with a gated product");
  if (c.block_n % 32 != 0) return invalid("block_n is ", c.block_n, "; of a gated product it is a multiple of 32");
  if (c.cta_group == 2 && c.cta_rows() == 64) {
    return invalid(
        "a pair of 64 rows a CTA has half of the columns in each half of its lanes: not for a gated product");
  }
  if (family.is_sm90() && tile_columns(p, c) % kSm90Chunk != 0) {
    return invalid("block_n is ", c.block_n, "; its half is finished ", kSm90Chunk, " columns at a time");
  }
  return Status();
}

Status check_split(const GemmProblem& p, const GemmConfig& c) {
  const uint64_t blocks = ceil_div(p.k, block_k(p, c));
  if (c.split_k * c.cluster_k <= blocks) return Status();
  const std::string cluster = c.cluster_k > 1 ? concat(" and cluster_k ", c.cluster_k) : "";
  return invalid("split_k is ", c.split_k, cluster, "; K has ", blocks, " blocks of ", block_k(p, c), " elements");
}

std::string shape(DataType type, uint64_t batch, uint64_t rows, uint64_t columns) {
  return concat(name(type), "[", batch, ",", rows, ",", columns, "]");
}

std::string shape(const Operand& o) { return shape(o.type, o.batch, o.rows(), o.columns()); }

// What tensor maps, and the 32-bit sizes of the kernels, can hold.
Status check_extents(const char* array, DataType type, uint64_t batch, uint64_t rows, uint64_t columns) {
  const std::string text = concat(array, " ", shape(type, batch, rows, columns));
  if (columns > kMaxExtent || rows > kMaxExtent || batch > kMaxExtent) {
    return invalid(text, " has a dimension of 2^31 or more; TMA coordinates are int32");
  }
  const uint64_t matrix = ceil_div(columns * size_bytes(type), kTmaAlignment) * kTmaAlignment * rows;  // below 2^65
  if (columns > kMaxStride / rows || matrix >= kMaxStride) {
    return invalid(text, " has matrices of 2^40 bytes or more, beyond the strides of TMA");
  }
  if (matrix > kMaxArray / batch) return invalid(text, " is larger than any address space");
  return Status();
}

Status check_operand(const KernelFamily& family, const Operand& operand, const GemmConfig& c, uint32_t extent,
                     uint32_t peers) {
  const Operand read = operand.as_read();
  if (Status status = check_extents(read.name, read.type, read.batch, read.rows(), read.columns()); !status.ok()) {
    return status;
  }
  return check_boxes(family, operand, c, extent, peers);
}

Status check_launched(const KernelFamily& family, const GemmProblem& p, const GemmConfig& c) {
  if (const std::string required = required_kernel(family, p, c); c.kernel != required) {
    return invalid("this launch needs kernel ", required);
  }
  Status status = check_extents("result", p.output, p.batch, p.m, p.n);
  if (status.ok() && p.gated) status = check_gated(family, p, c);
  if (status.ok()) status = check_operand(family, operand_a(p), c, a_extent(c), a_peers(c));
  if (status.ok()) status = check_operand(family, operand_b(p), c, b_extent(p, c), b_peers(c));
  if (status.ok()) status = check_split(p, c);
  return status;
}

}  // namespace

const KernelFamily* find_family(std::string_view name) {
  for (const KernelFamily& family : kFamilies) {
    if (family.name == name) return &family;
  }
  return nullptr;
}

const KernelFamily* family_of_kernel(std::string_view kernel) {
  for (const KernelFamily& family : kFamilies) {
    if (kernel.starts_with(concat("jaxbw_", family.name, "_"))) return &family;
  }
  return nullptr;
}

std::string repack_kernel(const KernelFamily& family, std::string_view kernel) {
  return concat("jaxbw_", family.name, "_repack_", kernel.find("_tf32_") != kernel.npos ? "32bit" : "16bit");
}

std::string reduce_kernel(const KernelFamily& family) { return concat("jaxbw_", family.name, "_reduce_f32"); }

uint32_t shared_memory_bytes(const KernelFamily& family, const GemmConfig& c) {
  return storage_layout(c.block_m, c.block_n, c.cta_group, c.k_spans, family.epilogue).total_bytes(c.stages);
}

uint32_t min_stages(const KernelFamily& family, const GemmConfig& c) {
  return c.cluster_k == 1 ? family.min_stages : std::max(family.min_stages, cluster_sum_stages(c.block_m, c.block_n));
}

uint32_t residual_stages(const KernelFamily& family, const GemmProblem& p, const GemmConfig& c, CUdeviceptr residual) {
  if (!p.residual || *p.residual == DataType::kF32 || !allows_registers(family, p, c)) return 0;
  const bool whole = c.split_k == 1 && c.cluster_k == 1;
  const bool in_line = c.cluster_m == 1 || c.cluster_n == 1;  // see sm90_residual.cuh
  const bool by_tma = c.swap_ab == 0 && (p.n * size_bytes(*p.residual) | residual) % kTmaAlignment == 0;
  if (!whole || !in_line || !by_tma) return 0;
  const uint32_t stages = residual_tile(c.block_m, c.block_n).stages(tile_columns(p, c));
  // In pingpong a team sees all of them full while it still holds one of the last block of K.
  return stages < c.stages ? stages : 0;
}

Formula formula(const KernelFamily& family, const GemmProblem& p, const GemmConfig& c, uint32_t residual_stages) {
  if (p.c || p.save || (p.residual && residual_stages == 0)) return Formula::kGeneral;
  const bool casts = p.alpha == 1 && !p.bias && !p.residual && p.activation == Activation::kNone && !p.gated;
  if (casts && (family.is_sm90() || c.split_k == 1)) return Formula::kCast;
  return allows_registers(family, p, c) ? Formula::kElementwise : Formula::kGeneral;
}

bool reduces_apart(const KernelFamily& family, const GemmConfig& c) {
  return family.is_sm90() && c.split_k >= kMinReducedParts;
}

StoreBox store_box(const KernelFamily& family, const GemmProblem& p, const GemmConfig& c) {
  if (family.is_sm90()) return sm90_store_box(c.block_n, p.output);
  return sm100_store_box(sm100_mma_rows(c.cta_rows()), c.block_n, c.cta_group, p.gated,
                         formula(family, p, c, 0) == Formula::kCast, p.output);
}

Status check_problem(const GemmProblem& p) {
  if (p.m == 0 || p.n == 0 || p.k == 0 || p.batch == 0) return invalid("a dimension is 0; there is nothing to launch");
  if (p.input > DataType::kF32 || p.output > DataType::kF32) return invalid("unknown dtype");
  if (p.activation > Activation::kGeluExact) {
    return invalid("unknown activation ", static_cast<uint32_t>(p.activation));
  }
  if (p.gated && p.c) return invalid("a gated product has no c");
  return Status();
}

Status check_config(const GemmConfig& c) {
  const KernelFamily* family = family_of_kernel(c.kernel);
  if (family == nullptr) return invalid("no kernel family is known for kernel '", c.kernel, "'");
  if (Status status = check_ranges(*family, c); !status.ok()) return status;
  Status status = family->is_sm90() ? check_sm90_tile(c) : check_sm100_tile(c);
  if (!status.ok()) return status;
  const uint32_t largest = family->max_cluster_size;
  if (c.cluster_m == 0 || c.cluster_n == 0 || c.cluster_m > largest || c.cluster_n > largest ||
      c.cluster_tiles() > largest) {
    return invalid("a cluster of ", c.cluster_m, "x", c.cluster_n, " CTAs; it has 1 to ", largest);
  }
  if (Status status = check_cluster_k(*family, c); !status.ok()) return status;
  if (c.cluster_m % c.cta_group != 0) {
    return invalid("cluster_m ", c.cluster_m, " is not a multiple of cta_group ", c.cta_group);
  }
  const uint32_t most = storage_layout(c.block_m, c.block_n, c.cta_group, c.k_spans, family->epilogue).max_stages();
  const uint32_t least = min_stages(*family, c);
  if (least > most) {
    return invalid("cluster_k is ", c.cluster_k, "; shared memory does not hold the sums of a ", c.block_m, "x",
                   c.block_n, " tile twice, as they are sent and received");
  }
  if (c.stages < least || c.stages > most) {
    const std::string cluster = c.cluster_k > 1 ? concat(" and cluster_k ", c.cluster_k) : "";
    return invalid(c.stages, " stages; a ", c.block_m, "x", c.block_n, " tile with k_spans ", c.k_spans, cluster,
                   " takes ", least, " to ", most);
  }
  if (family->is_sm90() && static_cast<LaunchScheduler>(c.scheduler) == LaunchScheduler::kClc) {
    return invalid("scheduler is ", c.scheduler, ", cluster launch control, which sm_90 does not have");
  }
  return Status();
}

Status check_launch(const GemmProblem& problem, const GemmConfig& c) {
  if (Status status = check_problem(problem); !status.ok()) return status;
  if (Status status = check_config(c); !status.ok()) return status;
  const Status status = check_launched(*family_of_kernel(c.kernel), as_launched(problem, c), c);
  if (status.ok() || c.swap_ab == 0) return status;
  return with_context("with lhs and rhs swapped", status);
}

std::string describe(const GemmProblem& p) {
  std::string text = concat(shape(operand_a(p)), p.a_major == Major::kMN ? "^T" : "", " @ ", shape(operand_b(p)),
                            p.b_major == Major::kK ? "^T" : "", p.gated ? " (gate and up)" : "");
  const std::pair<bool, const char*> terms[] = {
      {p.c.has_value(), " + c"}, {p.bias.has_value(), " + bias"}, {p.residual.has_value(), " + residual"}};
  for (const auto& [present, term] : terms) text += present ? term : "";
  return concat(text, " -> ", shape(p.output, p.batch, p.m, p.n), p.save ? ", saved" : "");
}

std::string describe(const GemmConfig& c) {
  const GemmConfig unchanged;
  std::string text = concat("kernel ", c.kernel);
#define JAXBW_FIELD(name, ...) \
  if (c.name != unchanged.name) text += concat(", ", #name, " ", c.name);
  JAXBW_CONFIG_FIELDS(JAXBW_FIELD)
#undef JAXBW_FIELD
  return text;
}

}  // namespace jaxbw
