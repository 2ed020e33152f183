// The launch parameters of every kernel: the structs that host and device share.
//
// Plain C++ without CUDA headers, so that the host runtime, the kernels and the emulator include the
// same file. A GEMM kernel takes exactly one argument, `const __grid_constant__ GemmParams`.
#pragma once

#include <cstddef>
#include <cstdint>

#include "gemm/cluster_protocol.h"
#include "gemm/tile_order.h"

namespace jaxbw {

// Element types. The low three bits are the operand-format field of the sm_100 instruction descriptor: of kind::f16 for
// 16-bit types, of kind::tf32 for kF32, whose operands are multiplied as TF32, of kind::f8f6f4 for 8-bit types, and of
// kind::mxf4nvf4 for kE2M1 (PTX 9.7.16.4.2). 8-bit types are JAX's float8_e4m3fn and float8_e5m2: types of operands,
// and of D. kE2M1 is float4_e2m1fn, two numbers in a byte, the first in its lower half: of operands with scales.
// Beside an operand of 8 bits a launch has kE2M1Padded in its stead, of kind::f8f6f4: the same in memory, but in shared
// memory TMA leaves a gap of 8 bytes behind each 8, so that a number takes as much as one of 8 bits.
enum class DataType : uint32_t { kF16 = 0, kBF16 = 1, kF32 = 2, kE4M3 = 8, kE5M2 = 9, kE2M1Padded = 13, kE2M1 = 17 };

// Whether an element in memory is a byte; and how many numbers one has.
constexpr bool is_8bit(DataType type) { return type >= DataType::kE4M3; }
constexpr uint32_t packing(DataType type) { return type == DataType::kE2M1 || type == DataType::kE2M1Padded ? 2 : 1; }
// Whether an instruction multiplies operands of these two types.
constexpr bool multiplied_together(DataType a, DataType b) { return a == b || (is_8bit(a) && is_8bit(b)); }
constexpr uint32_t size_log2(DataType type) { return is_8bit(type) ? 0 : type == DataType::kF32 ? 2 : 1; }
constexpr uint32_t size_bytes(DataType type) { return 1 << size_log2(type); }

// Which dimension of an operand is contiguous in memory: K, or the other one (M of A, N of B).
// The values are those of the transpose bits of wgmma and of the sm_100 instruction descriptor.
enum class Major : uint32_t { kK = 0, kMN = 1 };

// kGelu is the tanh approximation, jax.nn.gelu's default; kGeluExact has erf.
enum class Activation : uint32_t { kNone = 0, kRelu = 1, kGelu = 2, kSilu = 3, kGeluExact = 4 };

// How results leave the kernel. kTma: staged in shared memory, one TMA store per box; D is row-major, its rows are
// multiples of 16 bytes. kRows: staged, then copied by coalesced stores; D is row-major with any row length.
// kColumns: by ordinary stores; D is column-major as the kernel sees it (swap-AB).
enum class StorePath : uint32_t { kTma = 0, kRows = 1, kColumns = 2 };

// kStatic: cluster c of C computes the work items c, c + C, ... kClc: clusters ask the hardware for the next item
// (cluster launch control, sm_100).
enum class Scheduler : uint32_t { kStatic = 0, kClc = 1 };

// The largest magnitude that a cast to 8 bits rounds to a finite number. Beyond, e4m3 has NaN and e5m2 infinity, as
// in ml_dtypes and XLA.
constexpr float float8_limit(DataType type) { return type == DataType::kE4M3 ? 464.0f : 0x1.dffffep15f; }

// A CUtensorMap: 128 opaque bytes, encoded by the driver and read by the TMA unit.
struct alignas(64) TensorMap {
  uint64_t words[16];
};

// Something that the epilogue reads; data is null where there is none.
struct EpilogueOperand {
  const void* data;
  DataType type;
};

// Shaped as D and row-major like it, or null.
struct EpilogueResult {
  void* data;
  DataType type;
};

// Which way an epilogue takes. Where a cluster's CTAs have parts of a tile's sums, or a launch behind adds up parts,
// kElementwise is kGeneral.
enum class EpiloguePath : uint32_t {
  kGeneral,      // all that Epilogue says
  kCast,         // d = cast(accumulator); sm_100: and no tile is split
  kElementwise,  // sm_90: of accumulators, a bias and a residual that TMA brings, without a long activation, what is
                 // saved stored by TMA: computed in their registers
};

// What happens to an accumulator on its way out, in float32 up to the casts:
//
//   z = alpha * a_scale * b_scale * accumulator + beta * c + bias
//   d = cast(activation(z) + residual)                   saved[0] = cast(z), if wanted
//
// A gated matmul has two right operands, whose accumulators are gate and up:
//
//   z = alpha * a_scale * b_scale * gate + bias,  u = alpha * a_scale * b_up_scale * up
//                                                        saved[0] = cast(z), saved[1] = cast(u), if wanted
//   d = cast(activation(z) * u + residual)
//
// A d of 8 bits may have a scale, by which it is divided before the cast, which then saturates; beside it comes the
// largest magnitude before: GemmParams::out_scale.
//
// alpha and beta are numbers that the host knows, or lie in memory. Each row of A, and column of B, may have a scale.
struct Epilogue {
  float alpha, beta;
  const float *alpha_data, *beta_data;  // null: those above
  EpilogueOperand c;                    // shaped as D; may be D itself
  EpilogueOperand bias;                 // [n], or [m]
  EpilogueOperand residual;             // shaped as D
  uint32_t bias_along_m;                // 1: one bias for each row
  Activation activation;
  uint32_t gated;  // 1: b_up is the second right operand
  EpiloguePath path;
  // [batch or 1, m] and [batch or 1, n], batched as A and B are; or null.
  const float *a_scales, *b_scales, *b_up_scales;
};

// D[batch, m, n] = epilogue(sum_k A[batch, m, k] * B[batch, k, n])
//
// Work is handed out in cluster tiles: the block of D that one cluster of CTAs computes at a time,
// cluster.m x cluster.n CTA tiles (cta_group::2: two CTAs along M share one tile of block_m rows).
//
// With cluster.k > 1 a cluster is so many of these, one behind the other, that compute parts of K of the same tiles.
// Each CTA adds up the sums of a share of its tile (gemm/cluster_sum.h). Such a launch has a cluster for each work
// item.
//
// A work item is a cluster tile with all of K, or a part of one: tiles from whole_tiles on are split into split_k
// parts along K. The parts of a tile leave float32 sums in `partials`; the one that comes last adds them up in the
// order of the parts, whoever it is, so that the result does not depend on the timing. Where `counters` is null a
// launch behind does, with the same parameters (sm_90).
struct GemmParams {
  TensorMap a, b, b_up, d, saved[2], residual;  // rank 3: (contiguous dimension, outer dimension, batch)

  // What a kernel reads before its first load comes first, together: lines of the constant cache are slow to come
  // (gemm/request_parameters.h).
  uint32_t block_m, block_n;  // the tile of a CTA or pair: rows and columns of accumulators
  uint32_t pingpong;          // sm_90. 1: the warpgroups take turns at tiles, 0: they share each
  uint32_t tile_columns;      // columns of D in it: block_n, or half of it where gated
  ClusterShape cluster;
  TileOrder order;
  uint32_t whole_tiles;  // of all batch indices together: these are not split
  Divisor split_k;       // parts of each tile after those, each of which
  Divisor parts;         // the CTAs of a cluster divide: split_k * cluster.k
  uint32_t work_items;   // whole tiles and parts

  uint32_t m, n, k, batch;        // n: columns of D, also of a gated matmul
  uint32_t a_batched, b_batched;  // 1, or 0 where one matrix serves every batch index
  uint32_t b_is_ready;            // 1: B is complete before the preceding kernel of the stream ends; may be prefetched

  uint32_t stages;           // depth of the shared-memory ring
  uint32_t residual_stages;  // sm_90: of them, what a tile of the residual takes; 0 where it does not come by TMA
  StorePath store_path;
  uint32_t k_spans;       // swizzle spans along K in a stage
  uint32_t accumulators;  // TMEM ring: 1 or 2 (sm_100)

  Scheduler scheduler;
  // Where the instruction fixes them, as sm_90's does but for the types of 8 bits, these are not read.
  DataType a_type, b_type;
  Major a_major, b_major;

  Epilogue epilogue;
  EpilogueResult output, saved_output[2];

  // In elements: of D, and of c, residual and saved results. One of the first two is 1.
  uint64_t row_stride, column_stride, batch_stride;

  Divisor tile_slices;  // cluster_slices() of a CTA's tile (sm90_reduce.cuh)
  uint32_t b_columns;   // sm_100: of B in a CTA's part of a stage, see loaded_columns() in gemm/storage.h
  float* partials;      // see partial_floats() there
  uint32_t* counters;   // zero before the launch, and again behind it, see slice_count(); or null

  float float8_limit;  // of a D of 8 bits, see float8_limit(); infinite where the cast saturates

  // The scale of a D of 8 bits, and the largest magnitude that each batch index of it would have without, as the bits
  // of a float32, zero before the launch; or null. What these are exactly is said in jaxbw/_src/fp8.py.
  const float* out_scale;
  uint32_t* amax;
};

static_assert(sizeof(TensorMap) == 128 && alignof(GemmParams) == 64);
static_assert(offsetof(GemmParams, block_m) == 7 * sizeof(TensorMap));

// How much of an epilogue a launch of few rows has: kernels have code for each.
enum class SkinnyEpilogue : uint16_t { kCast, kFormula, kGated };

// The argument of the kernels of few rows, sm_90, A K-major, operands of 16 bits. Of an epilogue there are alpha, bias,
// a short activation, a gate and a residual. (A GemmParams is mostly tensor maps, which these kernels have no use for.)
struct alignas(64) SkinnyParams {
  // One line of the constant cache has all that most launches read.
  const void *a, *b;
  EpilogueResult output;      // dense, as is the residual
  uint32_t a_pitch, b_pitch;  // from row to row in memory, in elements
  uint32_t m, n, k;
  uint32_t log2_parts;  // the CTAs of a cluster divide K
  uint16_t one_row;     // 1: tiles are beside each other, of one batch index; `order` says the same
  SkinnyEpilogue kind;
  uint64_t a_matrix, b_matrix;  // from one batch index to the next, in elements; 0 where one matrix serves all
  const void* b_up;             // of a gated matmul, as B is
  TileOrder order;
  Epilogue epilogue;
};
static_assert(offsetof(SkinnyParams, a_matrix) <= 64);

// Elements along K, and columns of B, that share a scale.
constexpr uint32_t kScaleBlock = 128;

// sm_90, of 8 bits, where sums of a block of K are added up in float32: what they are multiplied by before. A has a
// scale for each row and block of K, B for each block of K and of columns; null where there are none.
struct BlockScales {
  const float* a;  // [batch or 1, m, blocks of k]
  const float* b;  // [batch or 1, blocks of n, blocks of k]
};

// The argument of the kernels that do.
struct PromotedParams {
  GemmParams gemm;
  BlockScales scales;
};

// sm_100, of 8 and 4 bits: each row of A, and column of B, has a scale for each kMxBlock of K, a power of two (ue8m0);
// or, of 4 bits, for each kNvBlock, in ue4m3. In memory they lie in tiles of 128 rows by 4 blocks, [batch or 1, tiles
// of rows, tiles of K, 512 bytes]: the scale of (row, block) is byte row % 32 * 16 + row / 32 % 4 * 4 + block % 4.
// cuBLAS has the same order. What stands for rows and blocks beyond the array may be anything but a NaN.
constexpr uint32_t kMxBlock = 32, kNvBlock = 16;
constexpr uint32_t kScaleTileRows = 128, kScaleTileBlocks = 4;
constexpr uint32_t kScaleTileBytes = kScaleTileRows * kScaleTileBlocks;
constexpr uint32_t scale_offset(uint32_t row) { return row % 32 * 16 + row / 32 % 4 * kScaleTileBlocks; }  // of block 0

// The argument of the kernels that do. The maps are of rank 3: a tile, tiles of K, tiles of rows of all batch indices.
// D may be in MXFP8: then it is e4m3, each kMxBlock of its columns have a scale in tiles that lie as those of A, and
// its rows in memory are whole blocks.
struct MxParams {
  GemmParams gemm;
  TensorMap a_scales, b_scales[2];  // of B, and where it is gated of B_up
  uint8_t* d_scales;                // null where D has none
  uint32_t stage_gaps;              // bytes of a CTA's stage that are gaps (kE2M1Padded), which barriers do not count
};

// The same of 4 bits, whose K counts bytes: to the kernel a pair of numbers is an element.
struct Mx4BitParams {
  GemmParams gemm;
  TensorMap a_scales, b_scales[2];  // of B, and where it is gated of B_up
  uint8_t* d_scales;                // null where D has none
  uint32_t span_tiles;              // tiles of scales along K in a swizzle span: 2 of kMxBlock, 4 of kNvBlock
};

// destination[batch, i, j] = source[batch, i, j], or with `transposed` source[batch, j, i], as the GEMM kernels want
// their operands: rows of destination_pitch elements, a multiple of 16 bytes. What lies behind a row's end is
// undefined.
struct RepackCopy {
  const void* source;
  void* destination;
  uint32_t rows, columns, batch;  // of the destination
  uint32_t destination_pitch;     // elements; the source is dense
  uint32_t transposed;
  uint32_t pieces;  // repack_pieces() of gemm/repack.h: 0 where there is no such copy
};

// The operands of a matmul that one launch copies: A, B and B_up at most.
constexpr uint32_t kMaxRepacks = 3;
struct RepackParams {
  RepackCopy copies[kMaxRepacks];
};

// data[i] = e4m3 or e5m2 of x[i] / scale: x in groups of `group` elements, one behind the other, and each with one
// scale. What that is exactly is said in jaxbw/_src/fp8.py: these are the same bits. All arrays are dense.
//
// A group that a block can hold takes one launch, kGroups. Others take two: kAmax leaves the maximum of each slice of
// each group, and kData or kBoth goes on from there. kBoth also writes the transpose of each matrix of data.
enum class QuantizePass : uint32_t { kGroups, kAmax, kData, kBoth };

struct QuantizeParams {
  const void* x;
  void* data;
  void* transposed;  // kBoth
  float* scale;      // of each group
  uint32_t* maxima;  // of each slice: the bits of a float32; not of kGroups
  uint64_t group;
  uint32_t groups;
  uint32_t slices;                   // of a group
  uint64_t slice;                    // elements of one, but for the last of a group
  uint32_t lanes;                    // kGroups: threads that share a group
  uint32_t matrices, rows, columns;  // kBoth: matrices of a group, and their shape
  QuantizePass pass;
  DataType format;  // of data: kE4M3 or kE5M2
};

// An array in blocks along k that share a scale of 8 bits, as jaxbw/_src/block_formats.py has it: these are the same
// bits. x is [matrices, rows, columns]. `data` and `scale` are null where they are not wanted.
struct BlocksAlong {
  void* data;   // [matrices, other dimension, padded_k(k)], k last
  void* scale;  // in tiles, one behind the other along k, then along the other dimension (scale_tiles.py)
};

struct QuantizeBlocksParams {
  const void* x;
  const float* global_scale;  // of kNvBlock: of each so many matrices, and null of the other formats
  const uint32_t* seeds;      // of kNvBlock, likewise, two words: data are rounded stochastically; or null
  const uint32_t* signs;      // of kNvBlock, likewise: x is rotated down its rows; or null
  BlocksAlong columns, rows;  // what k is
  Divisor matrices_per_scale;
  Divisor tiles_across, tiles_of_matrix;  // of kBlocksTile rows and columns
  uint32_t x_rows;                        // fewer than matrix_rows where rotating has padded them
  uint32_t matrix_rows, matrix_columns;
  uint32_t square;   // as many rows as columns share a scale
  DataType element;  // kE4M3, kE5M2 or kE2M1
};

}  // namespace jaxbw
