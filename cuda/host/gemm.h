// One matmul with its epilogue, as the host sees it: the problem, the chosen configuration, the buffers.
// gemm_call.cc reads them from a call, gemm_rules.cc says what may be launched, gemm_instances.cc by which kernel,
// gemm_tile.cc what a tile takes, gemm_plan.cc what the launch will do, gemm_launch.cc with which addresses;
// kernel_library.cc loads its kernels, gemm.cc launches them. call_site.cc keeps what is the same from call to call.
#pragma once

#include <cuda.h>

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>

#include "gemm/profile_layout.h"
#include "gemm/skinny.h"
#include "gemm/storage.h"
#include "host/kernel_instances.h"
#include "host/rules.h"
#include "host/status.h"
#include "params.h"

namespace jaxbw {

// What of a matmul falls into groups of consecutive rows, whose sizes lie in device memory (gemm/groups.h).
enum class Grouped : uint32_t { kNone, kRows, kContraction };

// What is computed is said at Epilogue in params.h. A is [batch|1, m, k] (K-major) or [batch|1, k, m] (MN-major), B and
// for a gated matmul B_up are [batch|1, n, k] (K-major) or [batch|1, k, n] (MN-major); C, the residual and all results
// are [batch, m, n]. Everything is dense.
//
// Where the rows of a grouped matmul are grouped, B is [batch|1, groups, ...], and so is B_up, and the bias is
// [batch|1, groups, n], as are scales of B; where its contraction is, both operands are MN-major, result and C
// [batch, groups, m, n].
//
// Where rows are grouped, and there is one batch index, A's may be gathered: lhs is [1, source_rows, k], and row i of A
// is the one of it that an index says, of which there are [m].
struct GemmProblem {
  uint64_t batch = 0, m = 0, n = 0, k = 0;
  bool a_batched = true, b_batched = true;  // false: one matrix for every batch index
  Major a_major = Major::kK, b_major = Major::kMN;
  DataType a_type = DataType::kBF16, b_type = DataType::kBF16, output = DataType::kBF16;
  bool promoted = false;  // sm_90, operands of 8 bits: sums of a block of K are added up in float32
  float alpha = 1, beta = 0;
  bool factors_in_memory = false;  // these are numbers on the device instead: alpha, and beta where there is a C
  bool a_scaled = false, b_scaled = false;  // their rows and columns have scales, of a gated matmul B_up's, too
  // Rows of A, and columns of B, that share a scale of each kScaleBlock of K: 1, kScaleBlock, or 0 where there is none.
  uint32_t a_blocks = 0, b_blocks = 0;
  uint32_t mx = 0;  // sm_100: numbers along K of each row and column that share a scale (MxParams); 0: there are none
  std::optional<DataType> c = std::nullopt, bias = std::nullopt, residual = std::nullopt;
  bool bias_along_m = false;
  Activation activation = Activation::kNone;
  bool gated = false, save = false;
  bool out_scaled = false;  // D, of 8 bits, has a scale, and its amax is a result
  bool out_mx = false;      // D is in MXFP8, and the tiles of its scales are a result (MxParams)
  Grouped grouped = Grouped::kNone;
  uint64_t groups = 1, total_groups = 0;  // matrices of B or D of a batch index; sizes, of which theirs are a part
  uint64_t source_rows = 0;               // 0: A's rows are not gathered

  // Matrices of the result, and of what the kernel takes for one with its own grid of tiles.
  uint64_t results() const { return grouped == Grouped::kContraction ? batch * groups : batch; }
  uint64_t tiled() const { return grouped == Grouped::kRows ? 1 : results(); }
  // Of D in memory, where blocks that share a scale are whole.
  uint64_t result_columns() const { return out_mx ? (n + kMxBlock - 1) / kMxBlock * kMxBlock : n; }
  bool gathered() const { return source_rows != 0; }
  // Whether the epilogue does: of a grouped matmul c is the result, and TMA adds to it.
  bool reads_c() const { return c && grouped == Grouped::kNone; }
  // Rows that fall into groups.
  uint64_t grouped_rows() const { return grouped == Grouped::kContraction ? k : m; }

  // Of what is saved: 8 bits are too few for a derivative.
  DataType saved() const { return is_8bit(output) ? DataType::kBF16 : output; }
};

// What Python's selection chose, each field an attribute of the custom call, with the value it has if nothing is
// chosen.
//
//   block_m, block_n       rows and columns of accumulators of a CTA or pair
//   pingpong               sm_90: 1: warpgroups take turns at tiles, 0: they share each
//   k_spans                swizzle spans along K in a stage
//   cluster_m, cluster_n   CTAs, along M and N
//   cluster_k              CTAs that compute parts of K of one tile, and add them up through distributed shared memory
//   cta_group              CTAs that share an MMA
//   stages                 depth of the shared-memory ring
//   swizzle, raster        cluster tiles of a band, and the dimension that is cut into bands (a Raster)
//   split_k                parts along K of every cluster tile, or where split_tail is 1 of the last tiles % wave
//   swap_ab                1: the kernel computes the transposed matmul
//   accumulators           TMEM ring
//   scheduler              a LaunchScheduler
#define JAXBW_CONFIG_FIELDS(X) \
  X(block_m, 0)                \
  X(block_n, 0)                \
  X(pingpong, 0)               \
  X(k_spans, 1)                \
  X(cluster_m, 1)              \
  X(cluster_n, 1)              \
  X(cluster_k, 1)              \
  X(cta_group, 1)              \
  X(stages, 0)                 \
  X(swizzle, 1)                \
  X(raster, 0)                 \
  X(split_k, 1)                \
  X(split_tail, 0)             \
  X(wave, 0)                   \
  X(swap_ab, 0)                \
  X(accumulators, 1)           \
  X(scheduler, 0)

// Who hands out the work items: the two of params.h, and kNone, where every cluster has one.
enum class LaunchScheduler : uint32_t { kStatic = 0, kClc = 1, kNone = 2 };

struct GemmConfig {
  std::string_view kernel;  // an instance's name; a plan finds it
#define JAXBW_FIELD(name, initial) uint32_t name = initial;
  JAXBW_CONFIG_FIELDS(JAXBW_FIELD)
#undef JAXBW_FIELD
  uint32_t b_columns = 0;   // that a CTA loads, if more than it multiplies (sm_100); a plan finds that, too,
  uint32_t span_tiles = 0;  // and the tiles of scales of MX formats along K in a span,
  uint32_t b_tiles = 0;     // and of B's columns

  uint32_t stage_k_tiles() const { return k_spans * span_tiles; }
  uint32_t cta_columns() const { return b_columns != 0 ? b_columns : block_n / cta_group; }  // loaded
  uint32_t cluster_tiles() const { return cluster_m * cluster_n; }  // CTA tiles (of a pair, halves of one)
  uint32_t cluster_size() const { return cluster_tiles() * cluster_k; }
  uint32_t cta_rows() const { return block_m / cta_group; }
  WarpgroupTile warpgroup_tile() const { return sm90_warpgroup_tile(block_m, block_n, pingpong != 0); }
};

// What a user gives, whose open fields have the family's defaults.
struct ConfigRequest {
  GemmConfig given;  // but for the fields of these names, and k_spans
  std::optional<uint32_t> block_k, stages, accumulators;
  std::optional<LaunchScheduler> scheduler;
  bool batch_invariant = false;
};

// Device addresses, 0 for none. The caller's workspace has GemmPlan::workspace.bytes.
struct GemmBuffers {
  CUdeviceptr a = 0, b = 0, b_up = 0;
  CUdeviceptr c = 0, bias = 0, residual = 0, alpha = 0, beta = 0;
  CUdeviceptr a_scales = 0, b_scales = 0, b_up_scales = 0, out_scale = 0;
  CUdeviceptr a_tiles = 0, b_tiles = 0, b_up_tiles = 0;  // of scales of MX formats
  CUdeviceptr lhs_rows = 0, group_sizes = 0, group_offset = 0;
  CUdeviceptr d = 0, saved = 0, saved_up = 0, amax = 0, d_tiles = 0;
  CUdeviceptr workspace = 0;
  CUdeviceptr counters = 0;  // GemmParams::counters, which no other call in flight has
};

// What the kernels of one architecture have in common.
struct KernelFamily {
  std::string_view name;
  EpilogueShape epilogue;
  uint32_t threads;           // of a gemm kernel's block, as in its __launch_bounds__
  uint32_t max_cluster_size;  // CTAs
  uint32_t max_cluster_k;
  uint32_t max_split_k;
  uint32_t max_accumulators;  // of a CTA, and as many as there are unless a configuration says another number
  LaunchScheduler scheduler;  // where none is chosen
  LaunchScheduler dynamic;    // by which SMs get work as they come free
  uint32_t min_stages;        // sm_90 holds on to one stage while it waits for the next
  int compute_major;
  int compute_minor;  // -1: any, a family target
  std::string_view gpus;

  bool runs_on(int major, int minor) const {
    return major == compute_major && (compute_minor < 0 || minor == compute_minor);
  }
  bool is_sm90() const { return compute_major == 9; }
};

// Whether a tile has few rows, whose kernels load without TMA (gemm/skinny.h).
inline bool is_skinny(const KernelFamily& family, const GemmConfig& c) {
  return family.is_sm90() && c.pingpong == 0 && c.block_m <= kMaxSkinnyRows;
}
inline SkinnyTile skinny_tile(const GemmConfig& c) { return skinny_tile(c.block_m, c.block_n); }

// "sm90"; null where there is none.
const KernelFamily* find_family(std::string_view name);

// --- the shape of a tile (gemm_tile.cc)

// The deepest ring; 0 where not even one stage fits. The shallowest one.
uint32_t max_stages(const KernelFamily& family, const GemmConfig& config);
uint32_t min_stages(const KernelFamily& family, const GemmConfig& config);

// Where none is chosen. How many items of a grouped matmul there are only the device knows: nothing hands them out.
LaunchScheduler default_scheduler(const KernelFamily& family, Grouped grouped);

// Of a CTA, whose tile may take all that there are; and where none are chosen.
uint32_t most_accumulators(const KernelFamily& family, const GemmConfig& config);
uint32_t min_accumulators(const KernelFamily& family, const GemmConfig& config);

// Of a CTA.
uint32_t threads(const KernelFamily& family, const GemmConfig& config);

// Dynamic shared memory of a launch, in bytes.
uint32_t shared_memory_bytes(const KernelFamily& family, const GemmConfig& config);

constexpr uint64_t ceil_div(uint64_t a, uint64_t b) { return (a + b - 1) / b; }

// Whether one operand has 4 bits and the other 8; and the type by which both count K in shared memory.
inline bool is_mixed(const GemmProblem& p) { return packing(p.a_type) != packing(p.b_type); }
inline DataType counted_type(const GemmProblem& p) {
  return packing(p.a_type) > packing(p.b_type) ? p.b_type : p.a_type;
}

inline uint32_t block_k(const GemmProblem& p, const GemmConfig& c) {
  return c.k_spans * span_elements(counted_type(p));
}

// Columns of D in a tile.
inline uint32_t tile_columns(const GemmProblem& p, const GemmConfig& c) { return p.gated ? c.block_n / 2 : c.block_n; }

// Rows of A and columns of one right operand that a CTA brings in one load. A gated tile has half of its columns from
// each of the two: a CTA alone loads both, of a pair each CTA one.
inline bool loads_both(const GemmProblem& p, const GemmConfig& c) { return p.gated && c.cta_group == 1; }
inline uint32_t a_extent(const GemmConfig& c) { return c.cta_rows(); }
inline uint32_t b_extent(const GemmProblem& p, const GemmConfig& c) {
  return c.cta_columns() / (loads_both(p, c) ? 2 : 1);
}

// GemmConfig::span_tiles.
inline uint32_t span_tiles(const GemmProblem& p) { return p.mx == 0 ? 0 : span_scale_tiles(counted_type(p), p.mx); }

// GemmConfig::b_tiles.
inline uint32_t b_tiles(const GemmProblem& p, const GemmConfig& c) {
  return p.mx == 0 ? 0 : mx_b_tiles(c.block_n, p.gated);
}

// MxParams::stage_gaps, of a problem as it is launched.
inline uint32_t stage_gaps(const GemmProblem& p, const GemmConfig& c) {
  const uint32_t rows = p.a_type == DataType::kE2M1Padded   ? a_extent(c)
                        : p.b_type == DataType::kE2M1Padded ? c.cta_columns()
                                                            : 0;
  return rows * c.k_spans * kSwizzleSpan / 2;
}

// GemmConfig::b_columns, of a problem as it is launched.
uint32_t b_columns(const KernelFamily& family, const GemmProblem& problem, const GemmConfig& config);

// The CTAs of a cluster that share an operand's tile load an equal part of it each, and multicast it to the others.
inline uint32_t a_peers(const GemmConfig& c) { return c.cluster_n; }
inline uint32_t b_peers(const GemmConfig& c) { return c.cluster_m / c.cta_group; }

constexpr uint32_t kMaxSwizzle = 16;
// From so many parts on, sums that the whole GPU adds up are worth the launch (sm_90).
constexpr uint32_t kMinReducedParts = 12;

// Whether a launch of its own adds up the parts of split tiles, not the warps that come last.
bool reduces_apart(const KernelFamily& family, const GemmConfig& config);

// GemmParams::residual_stages, of a problem as it is launched with a residual at this address.
uint32_t residual_stages(const KernelFamily& family, const GemmProblem& problem, const GemmConfig& config,
                         CUdeviceptr residual);

// Whether TMA can store the results, of which `results` is the addresses, ored, of a problem as it is launched.
bool stored_by_tma(const GemmProblem& problem, const GemmConfig& config, CUdeviceptr results);

// Which way the epilogue takes: Epilogue::path. `results`: as above.
EpiloguePath epilogue_path(const KernelFamily& family, const GemmProblem& problem, const GemmConfig& config,
                           uint32_t residual_stages, CUdeviceptr results);

// Columns that a block-scaled tile shares with the next one, and that its epilogue reads first; 0: it has none such.
uint32_t held_columns(const GemmProblem& problem, const GemmConfig& config);

// One TMA store of an epilogue warp.
StoreBox store_box(const KernelFamily& family, const GemmProblem& problem, const GemmConfig& config);

// --- rules (rules.h)

// A problem, whatever its configuration; a configuration, whatever the problem; and both, each of which is legal. The
// problem is as it is launched (as_launched), but in the first.
Verdict check_problem(const KernelFamily& family, const GemmProblem& problem);
Verdict check_config(const KernelFamily& family, const GemmConfig& config);
Verdict check_launched(const KernelFamily& family, const GemmProblem& launched, const GemmConfig& config);

// A configuration without open fields, for a problem or, where that is null, for any; fails on a block_k that its
// operands have not, or none. (check_config has still to see it.)
Planned<GemmConfig> complete(const KernelFamily& family, const ConfigRequest& request, const GemmProblem* problem);

// --- in words (gemm_describe.cc)

// "bf16[1,512,256] @ bf16[1,256,128] -> f32[1,512,128]", operands in the shapes they are stored in.
std::string describe(const GemmProblem& problem);
// The kernel, and the fields that do not have their default value.
std::string describe(const GemmConfig& config);

// --- launching

struct GemmPlan;        // gemm_launch.h
struct PreparedKernel;  // kernel_library.h

// Kernels that stamp what their warps do: where they lie, and where their stamps go.
struct Profiling {
  std::string directory;
  ProfileMemory memory;
  uint64_t words;  // of the memory
};

// Loads the kernels and asks what a launch has to know of the device, so that launch_gemm only launches.
Result<PreparedKernel> prepare_gemm(const GemmConfig& config, int device, const Profiling* profiling = nullptr);

// Enqueues the matmul: what is to be cleared or repacked, the gemm kernel, what adds up its parts. Nothing is
// allocated, nothing waits. With `profiling`, for which the kernel was prepared, the gemm kernel leaves its stamps.
Status launch_gemm(const GemmPlan& plan, const PreparedKernel& kernel, const GemmBuffers& buffers, int device,
                   CUstream stream, const Profiling* profiling = nullptr);

}  // namespace jaxbw
