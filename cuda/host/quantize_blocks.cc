#include "host/quantize_blocks.h"

#include <algorithm>
#include <array>

#include "gemm/quantize_blocks.h"
#include "host/call_arrays.h"
#include "host/kernel_library.h"

namespace jaxbw {
namespace {

// Data and scales along a dimension of this size, `others` of them in a matrix.
struct Direction {
  BlocksWanted wanted;
  std::array<int64_t, 3> data;
  std::array<int64_t, 4> scale;

  Direction(int32_t wanted, int64_t matrices, int64_t others, int64_t k, uint32_t block)
      : wanted(static_cast<BlocksWanted>(wanted)),
        data{matrices, others, static_cast<int64_t>(padded_k(k))},
        scale{matrices, static_cast<int64_t>(blocks_tiles(others)), static_cast<int64_t>(scale_tiles_along(k, block)),
              kScaleTileBytes} {}
};

Status check(const Array& x, const QuantizeBlocksAttributes& attributes) {
  const std::string text = concat("x ", shape_text(x.dims), ": ");
  if (!x.type || is_8bit(*x.type)) return invalid(text, "it is f16, bf16 or f32");
  if (x.dims.size() != 3) return invalid(text, "it is [matrices, rows, columns]");
  if (std::ranges::any_of(x.dims, [](int64_t extent) { return extent <= 0 || extent > INT32_MAX - kBlocksTile; })) {
    return invalid(text, "a dimension is 0, or more than the kernel counts");
  }
  const uint64_t tiles = blocks_tiles(x.dims[1]) * blocks_tiles(x.dims[2]);
  if (tiles > INT32_MAX / static_cast<uint64_t>(x.dims[0])) return invalid(text, "it has more tiles than a launch");
  const KernelInstance* instance = find_instance(attributes.kernel);
  const std::string_view input = quantized_input(*x.type);
  if (instance == nullptr || instance->role != "quantize_blocks" || instance->input != input) {
    return invalid("kernel ", attributes.kernel, " does not quantize ", input, " to blocks");
  }
  return Status();
}

}  // namespace

Result<QuantizeBlocksPlan> read_quantize_blocks(const QuantizeBlocksAttributes& attributes,
                                                std::span<const Array> operands, std::span<const Array> results) {
  if (operands.empty() || operands.size() > 4) {
    return invalid("there are x, and of NVFP4 its global scales, and perhaps seeds and signs");
  }
  const Array& given = operands[0];
  if (Status status = check(given, attributes); !status.ok()) return status;
  const bool is_nv = operands.size() > 1;
  const auto has_rank = [&](size_t operand, size_t rank) {
    return operand < operands.size() && operands[operand].dims.size() == rank;
  };
  const bool is_dithered = has_rank(2, 2), is_rotated = has_rank(is_dithered ? 3 : 2, 1);
  if (operands.size() != 1u + is_nv + is_dithered + is_rotated) return invalid("seeds are [S, 2], and signs [S]");
  const uint32_t block = is_nv ? kNvBlock : kMxBlock;
  const int64_t matrices = given.dims[0], columns = given.dims[2];
  const int64_t rows = is_rotated ? (given.dims[1] + kRotatedRows - 1) / kRotatedRows * kRotatedRows : given.dims[1];
  // Of columns there may be scales alone, before the data of rows.
  const size_t data = attributes.columns == static_cast<int32_t>(BlocksWanted::kScales);
  const std::optional<DataType> element = data < results.size() ? results[data].type : std::nullopt;
  const bool is_element = element && is_8bit(*element) && (!is_nv || *element == DataType::kE2M1);
  if (!is_element) return invalid("data are e2m1 with global scales, and else e4m3, e5m2 or e2m1");

  const std::optional<DataType> of_scale = is_nv ? std::optional(DataType::kE4M3) : std::nullopt;
  QuantizeBlocksPlan plan = {};
  QuantizeBlocksParams& params = plan.params;
  WantedArray x{"x", given.type, given.dims};
  Status status = take(given, x);
  size_t taken = 0;
  const auto read = [&](const Direction& direction, BlocksAlong& along) {
    WantedArray data{"data", element, direction.data}, scale{"scale", of_scale, direction.scale};
    const auto read_one = [&](WantedArray& wanted) {
      if (!status.ok()) return;
      status = taken < results.size() ? take(results[taken++], wanted) : invalid(wanted.name, " is missing");
    };
    if (direction.wanted == BlocksWanted::kNothing) return;
    if (direction.wanted == BlocksWanted::kDataAndScales) read_one(data);
    read_one(scale);
    along = {data.pointer(), scale.pointer()};
  };
  read({attributes.columns, matrices, rows, columns, block}, params.columns);
  read({attributes.rows, matrices, columns, rows, block}, params.rows);
  if (!status.ok()) return status;
  if (taken != results.size()) return invalid(results.size(), " results; this call has ", taken);
  if (is_nv) {
    const int64_t scales = operands[1].dims.size() == 1 ? operands[1].dims[0] : 0;
    if (scales <= 0 || matrices % scales != 0) return invalid("global scales are one for each so many matrices");
    WantedArray global{"global scales", DataType::kF32, operands[1].dims};
    if (status = take(operands[1], global); !status.ok()) return status;
    params.global_scale = global.pointer<const float>();
    params.matrices_per_scale = divisor(static_cast<uint32_t>(matrices / scales));
    const auto read_bits = [&](const char* name, const Array& given, std::span<const int64_t> dims) {
      WantedArray bits{name, std::nullopt, dims, Untyped::kInt32};
      if (status.ok()) status = take(given, bits);
      return bits.pointer<const uint32_t>();
    };
    if (is_dithered) params.seeds = read_bits("seeds", operands[2], std::array{scales, int64_t{2}});
    if (is_rotated) params.signs = read_bits("signs", operands.back(), std::array{scales});
    if (!status.ok()) return status;
  }
  params.x = x.pointer();
  params.x_rows = static_cast<uint32_t>(given.dims[1]);
  params.matrix_rows = static_cast<uint32_t>(rows);
  params.matrix_columns = static_cast<uint32_t>(columns);
  params.square = attributes.square != 0;
  params.element = *element;
  const auto across = static_cast<uint32_t>(blocks_tiles(columns)),
             of_matrix = static_cast<uint32_t>(blocks_tiles(rows)) * across;
  params.tiles_across = divisor(across);
  params.tiles_of_matrix = divisor(of_matrix);
  plan.shape = {.blocks = static_cast<uint32_t>(matrices) * of_matrix, .threads = kBlocksThreads};
  return plan;
}

}  // namespace jaxbw
