// What a launch of a tile takes: its ring, its threads, its epilogue's way. See "the shape of a tile" in gemm.h.
#include <algorithm>

#include "host/gemm_launch.h"

namespace jaxbw {
namespace {

// Whether a formula, whatever arrays it reads beside the bias, may be EpiloguePath::kElementwise. Once for each
// accumulator, the code of gelu_exact, or of a cast to 8 bits, would be longer than all else.
bool allows_registers(const KernelFamily& family, const GemmProblem& p, const GemmConfig& c) {
  const bool scaled = p.a_scaled || p.b_scaled;
  return family.is_sm90() && !is_8bit(p.output) && !p.reads_c() && (!scaled || is_8bit(p.a_type)) &&
         p.activation != Activation::kGeluExact && (!p.gated || sm90_gated_in_boxes(c.block_n));
}

}  // namespace

uint32_t b_columns(const KernelFamily& family, const GemmProblem& p, const GemmConfig& c) {
  const uint32_t columns = c.block_n / c.cta_group;
  // Of gate and up side by side, the tensor core would multiply what is loaded between them.
  if (family.is_sm90() || loads_both(p, c)) return columns;
  return loaded_columns(operand_b(family, p).as_read().major, p.b_type, columns);
}

uint32_t threads(const KernelFamily& family, const GemmConfig& c) {
  return is_skinny(family, c) ? skinny_tile(c).threads() : family.threads;
}

uint32_t shared_memory_bytes(const KernelFamily& family, const GemmConfig& c) {
  if (is_skinny(family, c)) return skinny_tile(c).shared_bytes(c.cluster_k);
  const uint32_t scales = c.stages * mx_stage_bytes(c.b_tiles, c.stage_k_tiles());
  return storage_layout(c.cta_rows(), c.cta_columns(), c.k_spans, family.epilogue).total_bytes(c.stages) + scales;
}

LaunchScheduler default_scheduler(const KernelFamily& family, Grouped grouped) {
  return grouped == Grouped::kNone ? family.scheduler : LaunchScheduler::kStatic;
}

uint32_t min_accumulators(const KernelFamily& family, const GemmConfig& c) {
  return family.is_sm90() ? 1 : sm100_mma_tiles(c.cta_rows());
}

uint32_t most_accumulators(const KernelFamily& family, const GemmConfig& c) {
  // Scales stand beside accumulators.
  const bool full = c.span_tiles != 0 && !mx_two_accumulators(c.block_n, c.b_tiles, c.span_tiles);
  return full ? 1 : family.max_accumulators;
}

uint32_t max_stages(const KernelFamily& family, const GemmConfig& c) {
  if (is_skinny(family, c)) return skinny_tile(c).stages;
  const StorageLayout layout = storage_layout(c.cta_rows(), c.cta_columns(), c.k_spans, family.epilogue);
  if (c.span_tiles == 0) return layout.max_stages();
  return mx_max_stages(layout, c.block_n, c.b_tiles, c.stage_k_tiles(), c.accumulators);
}

uint32_t min_stages(const KernelFamily& family, const GemmConfig& c) {
  if (is_skinny(family, c)) return skinny_tile(c).stages;
  if (c.cluster_k == 1) return family.min_stages;
  if (family.is_sm90()) return std::max(family.min_stages, cluster_sum_stages(c.block_m, c.block_n));
  const uint32_t sums = c.block_m * c.block_n * uint32_t{sizeof(float)};  // those that are sent lie in the ring
  const StorageLayout layout = storage_layout(c.cta_rows(), c.cta_columns(), c.k_spans, family.epilogue);
  return static_cast<uint32_t>(ceil_div(sums, layout.stage_bytes()));
}

uint32_t residual_stages(const KernelFamily& family, const GemmProblem& p, const GemmConfig& c, CUdeviceptr residual) {
  // The general way, which what is saved may take, reads no ring.
  if (!p.residual || *p.residual == DataType::kF32 || p.save || !allows_registers(family, p, c)) return 0;
  const bool whole = c.split_k == 1 && c.cluster_k == 1;
  const bool in_line = c.cluster_m == 1 || c.cluster_n == 1;  // see sm90_residual.cuh
  const bool by_tma = c.swap_ab == 0 && (p.n * size_bytes(*p.residual) | residual) % kTmaAlignment == 0;
  if (!whole || !in_line || !by_tma) return 0;
  const uint32_t stages = residual_tile(c.block_m, c.block_n).stages(tile_columns(p, c));
  // In pingpong a warpgroup sees all of them full while it still holds one of the last block of K.
  return stages < c.stages ? stages : 0;
}

bool stored_by_tma(const GemmProblem& p, const GemmConfig& c, CUdeviceptr results) {
  // TMA stores 16 bytes whole, even past the end of the last row (seen on an H200: a result of one element overwrote
  // what followed it): so the rule holds for a single row too.
  return c.swap_ab == 0 && (p.result_columns() * size_bytes(p.output) | results) % kTmaAlignment == 0;
}

EpiloguePath epilogue_path(const KernelFamily& family, const GemmProblem& p, const GemmConfig& c,
                           uint32_t residual_stages, CUdeviceptr results) {
  if (p.reads_c() || is_8bit(p.output) || (p.residual && residual_stages == 0)) return EpiloguePath::kGeneral;
  if (p.save && !(size_bytes(p.output) == 2 && stored_by_tma(p, c, results))) return EpiloguePath::kGeneral;
  const bool scales = p.factors_in_memory || p.alpha != 1 || p.a_scaled || p.b_scaled;
  const bool casts = !scales && !p.bias && !p.residual && p.activation == Activation::kNone && !p.gated && !p.save;
  if (casts && (family.is_sm90() || c.split_k == 1)) return EpiloguePath::kCast;
  return allows_registers(family, p, c) ? EpiloguePath::kElementwise : EpiloguePath::kGeneral;
}

uint32_t held_columns(const GemmProblem& p, const GemmConfig& c) {
  const bool is_short = !is_8bit(p.output) && !p.c && !p.residual && !p.save && !p.gated &&
                        p.activation != Activation::kGeluExact && c.split_k == 1 && stored_by_tma(p, c, 0);
  if (c.span_tiles == 0 || c.accumulators > 1 || !is_short || p.grouped != Grouped::kNone) return 0;
  return c.block_n - mx_accumulator_step(c.block_n, c.b_tiles, c.stage_k_tiles(), c.stages, c.accumulators);
}

bool reduces_apart(const KernelFamily& family, const GemmConfig& c) {
  return family.is_sm90() && c.split_k >= kMinReducedParts;
}

StoreBox store_box(const KernelFamily& family, const GemmProblem& p, const GemmConfig& c) {
  if (family.is_sm90()) return sm90_store_box(c.warpgroup_tile().columns, p.output);
  if (p.grouped != Grouped::kNone) return {sm100_slice(0, c.cta_rows(), c.block_n, c.cta_group).rows, kGroupedChunk};
  return sm100_store_box(sm100_mma_rows(c.cta_rows()), c.block_n, c.cta_group, p.gated,
                         epilogue_path(family, p, c, 0, 0) == EpiloguePath::kCast, p.output);
}

}  // namespace jaxbw
