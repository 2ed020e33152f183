// The rule book: every reason why something cannot be launched, by a code, with the numbers that a message needs.
// gemm_rules.cc says when each holds. Two readers put it in words: describe() here, for who calls the runtime, and
// jaxbw/_src/selection/planner.py, for users, who know the fields of jaxbw.GemmConfig and want a remedy.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <utility>
#include <variant>
#include <vector>

namespace jaxbw {

// Code, and text: {name} is a field of the violation, {takes} the list of values that there are, {operand} an array.
#define JAXBW_RULES(X)                                                                                                 \
  /* of a problem alone */                                                                                             \
  X(empty, "a dimension is 0; there is nothing to launch")                                                             \
  X(dtype, "unknown dtype")                                                                                            \
  X(activation, "unknown activation {activation}")                                                                     \
  X(gated_c, "a gated matmul has no c")                                                                                \
  X(out_scale, "only a result of 8 bits has a scale")                                                                  \
  X(block_scales_sm100, "scales of blocks are for sm_90, which promotes its sums")                                     \
  X(block_scales_8bit, "scales of blocks are for operands of 8 bits whose sums are promoted")                          \
  X(block_scales_gated, "a gated matmul has no scales of blocks")                                                      \
  X(block_scales_rows, "rows of lhs share the scales of blocks; each has its own")                                     \
  X(block_scales_columns, "each column of rhs has scales of blocks; 128 share them")                                   \
  X(mx, "MX formats are for sm_100, operands of 8 or 4 bits, and go without other scales")                             \
  X(mx_block, "{block} numbers share a scale; of operands of 8 bits it is 32, of 4 bits 16 or 32")                     \
  X(mx_4bit, "{operand} has 4 bits: it is K-major, k is a multiple of {step}, and there are scales of blocks")         \
  X(out_mx, "a result in MXFP8 is e4m3, of operands of MX formats, and alone")                                         \
  X(extent, "{operand} has a dimension of 2^31 or more; TMA coordinates are int32")                                    \
  X(stride, "{operand} has matrices of 2^40 bytes or more, beyond the strides of TMA")                                 \
  X(address_space, "{operand} is larger than any address space")                                                       \
  X(grouped_epilogue, "grouped rows have alpha, bias, gate, activation; a contraction alpha, and c as f32")            \
  X(grouped_8bit_major, "rhs has n as its last dimension; of sm_90 grouped rows of 8 bits take it K-major only")       \
  X(grouped_alignment, "{operand} has rows of {bytes} bytes; of a grouped matmul they are multiples of {unit}")        \
  X(gathered, "lhs_rows are for a matmul whose rows are grouped, with a batch of 1")                                   \
  X(grouped_mx, "of MX formats rows are grouped, not gathered, with a batch of 1; lhs has as many bits, or more")      \
  X(grouped_rows, "{batch} times {rows} rows in groups; they are up to {most}, and fewer than 2^31 in all")            \
  /* of a configuration alone */                                                                                       \
  X(block_k, "block_k is {block_k}; it is a multiple of {span}, up to {most}")                                         \
  X(block_k_of_any,                                                                                                    \
    "block_k is {block_k}; it is 1 to {spans} spans: of 32 elements of f32, 64 of 16, 128 of 8, 256 of 4 bits")        \
  X(block_k_sm90, "block_k is {block_k}; the sm_90 kernels take {span}")                                               \
  X(k_spans, "k_spans is {k_spans}; it is 1 to {most}")                                                                \
  X(k_spans_sm90, "k_spans is {k_spans}; the sm_90 kernels take {spans}")                                              \
  X(pingpong, "pingpong is {pingpong}; it is 0 to {most}")                                                             \
  X(pingpong_sm100, "pingpong is 1; it is for sm_90")                                                                  \
  X(swizzle, "swizzle is {swizzle}; it is 1 to {most}")                                                                \
  X(raster, "raster is {raster}; it is 0 to 1")                                                                        \
  X(split_k, "split_k is {split_k}; it is 1 to {most}")                                                                \
  X(split_tail, "split_tail is {split_tail}; it is 0 to 1")                                                            \
  X(split_tail_whole, "split_tail is 1 and split_k 1; it is 2 or more")                                                \
  X(batch_invariant_tail, "split_tail and batch_invariant: which tiles are split would follow m")                      \
  X(wave, "wave is {wave}; it is {first} to {last}")                                                                   \
  X(swap_ab, "swap_ab is {swap_ab}; it is 0 to 1")                                                                     \
  X(accumulators, "accumulators is {accumulators}; it is 1 to {most}")                                                 \
  X(accumulators_sm90, "accumulators is {accumulators}; the sm_90 kernels have 1")                                     \
  X(accumulators_full, "accumulators is 1; a tile of {block_m} rows fills both")                                       \
  X(scheduler, "scheduler is {scheduler}; it is 0 to {last}")                                                          \
  X(scheduler_clc, "scheduler is {scheduler}, cluster launch control, which sm_90 does not have")                      \
  X(cta_group_sm90, "cta_group is {cta_group}; sm_90 has no CTA pairs")                                                \
  X(block_m_sm90, "block_m is {block_m}; with pingpong {pingpong} it is {takes}")                                      \
  X(block_n_sm90, "block_n is {block_n}; with block_m {block_m} and pingpong {pingpong} it is {takes}")                \
  X(cta_group, "cta_group is {cta_group}; it is 1 or 2")                                                               \
  X(block_m, "block_m is {block_m}; with cta_group {cta_group} it is {takes}")                                         \
  X(block_n, "block_n is {block_n}; {block_m} rows with cta_group {cta_group} take a multiple of {step} up to {most}") \
  X(cluster, "a cluster of {cluster_m}x{cluster_n} CTAs; it has 1 to {most}")                                          \
  X(cluster_group, "cluster_m {cluster_m} is not a multiple of cta_group {cta_group}")                                 \
  X(cluster_k, "cluster_k is {cluster_k}; it is {takes}")                                                              \
  X(cluster_size,                                                                                                      \
    "a cluster of {cluster_m}x{cluster_n} CTAs, {cluster_k} parts of K each; it has 1 to {most} CTAs in all")          \
  X(cluster_slices, "cluster_k is {cluster_k}; the CTAs share whole slices of {rows} rows, and block_m is {block_m}")  \
  X(cluster_sums,                                                                                                      \
    "cluster_k is {cluster_k}; shared memory does not hold the sums of a {block_m}x{block_n} tile twice, as they are " \
    "sent and received")                                                                                               \
  X(cluster_k_sm100, "cluster_k is {cluster_k}; on sm_100 it goes with swap_ab, and not with split_k or cta_group 2")  \
  X(cluster_sums_sm100,                                                                                                \
    "cluster_k is {cluster_k}; staging buffers do not hold the sums of a {block_m}x{block_n} tile from all parts")     \
  X(stage, "k_spans is {k_spans}; one such stage of a {block_m}x{block_n} tile does not fit shared memory")            \
  X(stages, "{stages} stages; a {block_m}x{block_n} tile with k_spans {k_spans} takes {least} to {most}")              \
  /* of both */                                                                                                        \
  X(no_kernel, "no kernel takes such operands")                                                                        \
  X(grouped_config, "a grouped matmul takes raster 0, no cluster, no split and no swap")                               \
  X(grouped_config_sm100,                                                                                              \
    "of sm_100 a grouped matmul has no CLC, one span of K, 64, 128 or a pair's 256 rows, 32 columns or multiples")     \
  X(block_n_of_operands,                                                                                               \
    "block_n is {block_n}; of such operands, with block_m {block_m} and pingpong {pingpong}, it is {takes}")           \
  X(whole_tiles,                                                                                                       \
    "{block_m}x{block_n}, pingpong {pingpong}, has kernels for whole tiles that TMA stores, no residual, none saved")  \
  X(skinny, "a tile of {block_m} rows has no cluster but along K, no split_k and no swap_ab")                          \
  X(skinny_epilogue, "a tile of {block_m} rows has alpha, bias, short activation, gate, residual, 16 bits and more")   \
  X(skinny_row, "{operand} is one row of {bytes} bytes; kernels of few rows take multiples of {unit}")                 \
  X(gated_swap, "swap_ab does not go with a gated matmul")                                                             \
  X(block_scales_swap, "swap_ab does not go with scales of blocks")                                                    \
  X(mx_gated, "block_n is {block_n}; of a gated matmul of MX formats, with cta_group {cta_group}, it is {takes}")      \
  X(mx_rows, "block_m is {block_m}; of MX formats it is {takes}")                                                      \
  X(mx_columns, "block_n is {block_n}; of MX formats it is a multiple of {step}")                                      \
  X(mx_accumulators, "{accumulators} accumulators of {block_n} columns leave none for the scales of MX formats")       \
  X(mx_cluster_k, "cluster_k does not go with MX formats")                                                             \
  X(out_mx_swap, "swap_ab does not go with a result in MXFP8")                                                         \
  X(out_mx_columns, "block_n is {block_n}; of a result in MXFP8 it is a multiple of {step}")                           \
  X(gated_columns, "block_n is {block_n}; of a gated matmul it is a multiple of {step}")                               \
  X(gated_columns_sm90, "block_n is {block_n}; of a gated matmul it is {takes}")                                       \
  X(gated_pair, "a pair of 64 rows a CTA has half of the columns in each half of its lanes: not for a gated matmul")   \
  X(columns, "{operand} is MN-major and its tile is {extent} wide; it is loaded in columns of {step}")                 \
  X(columns_8bit,                                                                                                      \
    "block_n is {block_n}; {operand} has 8 bits and is MN-major: cta_group {cta_group} takes multiples of {step}")     \
  X(columns_of_result, "block_n is {block_n}; a result of 8 bits takes multiples of {step}")                           \
  X(shares, "{operand} is shared by {peers} CTAs, which cannot load equal parts of {rows} rows in groups of {group}")  \
  X(box_rows, "{operand}: a CTA loads {rows} rows at once; TMA takes up to {most}")                                    \
  X(parts, "split_k is {split_k}; K has {blocks} blocks of {block_k} elements")                                        \
  X(parts_of_cluster, "split_k is {split_k} and cluster_k {cluster_k}; K has {blocks} blocks of {block_k} elements")   \
  X(grid, "{tiles_m}x{tiles_n} cluster tiles for each of {batch} batch indices are more than a grid holds")            \
  X(slices, "{slices} slices of split tiles are more than 32 bits count")

enum class Rule : uint32_t {
#define JAXBW_RULE(code, text) code,
  JAXBW_RULES(JAXBW_RULE)
#undef JAXBW_RULE
};

// The array that a violation's field "operand" stands for.
enum class RuleOperand : int64_t { kLhs = 0, kRhs = 1, kResult = 2 };

// A rule that is broken, and by how much.
struct Violation {
  Rule rule;
  std::vector<std::pair<const char*, int64_t>> fields = {};
  std::vector<uint32_t> takes = {};
};

// What a check finds.
using Verdict = std::optional<Violation>;

// A value, or the rule that there is none by.
template <typename T>
class [[nodiscard]] Planned {
 public:
  Planned(const T& value) : state_(value) {}                      // NOLINT: a value is a result
  Planned(Violation violation) : state_(std::move(violation)) {}  // NOLINT

  bool ok() const { return std::holds_alternative<T>(state_); }
  const Violation& violation() const { return std::get<Violation>(state_); }
  const T& operator*() const { return std::get<T>(state_); }
  const T* operator->() const { return &std::get<T>(state_); }

 private:
  std::variant<T, Violation> state_;
};

// "block_k", ...: as Python knows a rule.
const char* name(Rule rule);
std::string describe(const Violation& violation);

}  // namespace jaxbw
