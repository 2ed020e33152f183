#include "umma.h"

#include <bit>
#include <cmath>
#include <string>

#include "bits.h"
#include "error.h"
#include "fused_sum.h"
#include "mma_kernel.h"
#include "umma_rules.h"
#include "umma_scales.h"

namespace jaxbw::emulator {
namespace {

// Rows of A and D, and columns of B, that one CTA holds.
uint32_t rows_per_cta(const Umma& op) { return op.instruction.m / op.cta_group; }
uint32_t b_columns_per_cta(const Umma& op) { return op.instruction.n / op.cta_group; }
bool is_layout_b(const Umma& op) { return op.cta_group == 2 && op.instruction.m == 128; }
bool is_layout_f(const Umma& op) { return op.cta_group == 1 && op.instruction.m == 64; }

constexpr uint32_t kAColumns = kMmaKBytes / 4;  // the cells of a row of A in tensor memory

// Table 39. It lists N in steps of 8 for M = 128 with one CTA, CUTLASS asserts steps of 16 unless block-scaled: the
// stricter rule. Of a block-scaled pair with M = 128 nothing says where its scales lie.
void check_shape(const Umma& op) {
  const uint32_t m = op.instruction.m, n = op.instruction.n;
  const std::string shape =
      "M = " + std::to_string(m) + ", N = " + std::to_string(n) + ", cta_group::" + std::to_string(op.cta_group) + ": ";
  const bool scaled = is_block_scaled(op.instruction.kind);
  require(op.cta_group == 1 || op.cta_group == 2, "cta_group must be 1 or 2");
  require(!scaled || m == 128 * op.cta_group, shape + "M of a block-scaled kind is 128, or 256 of a pair");
  if (op.cta_group == 1) {
    require(m == 64 || m == 128, shape + "M must be 64 or 128 (PTX 9.7.16.2.1)");
    const uint32_t step = m == 64 || scaled ? 8 : 16;
    require(n % step == 0 && n >= step && n <= 256,
            shape + "N must be a multiple of " + std::to_string(step) + " up to 256 (PTX 9.7.16.2.1)");
  } else {
    require(m == 128 || m == 256, shape + "M must be 128 or 256 (PTX 9.7.16.2.1)");
    require(n % 16 == 0 && n >= 16 && n <= 256, shape + "N must be a multiple of 16 up to 256 (PTX 9.7.16.2.1)");
    require(!op.a_in_tmem || n % 32 == 0, shape + "A in tensor memory needs N in steps of 32");
  }
  if (op.instruction.b_major == OperandMajor::kMN && format_bits(op.instruction.b_format) == 8) {
    require(n % (16 * op.cta_group) == 0, shape + "a transposed 8-bit B needs N in steps of " +
                                              std::to_string(16 * op.cta_group) + " (PTX table 52)");
  }
}

// Tables 51 and 54.
void check_operand(const char* name, NumberFormat format, OperandMajor major, const SharedMatrix& matrix) {
  const std::string operand = std::string("operand ") + name + ": ";
  const bool atom_32b = matrix.swizzle == Swizzle::k128BAtom32B;
  if (major == OperandMajor::kK) {
    require(!atom_32b, operand + "128B swizzling with 32B atoms has no documented K-major layout (PTX table 55)");
  } else {
    require(format_bits(format) >= 8, operand + "6- and 4-bit elements cannot be transposed (PTX table 54)");
    require(atom_32b == (format == NumberFormat::kTf32),
            operand + "128B swizzling with 32B atoms goes with transposed tf32, and only with it (PTX table 54)");
  }
}

std::vector<TmemRegion> row_regions(const Umma& op, uint32_t address, uint32_t columns) {
  const uint32_t column = tmem_column(address);
  if (!is_layout_f(op)) return {{tmem_lane(address), kTmemLanes, column, columns}};
  std::vector<TmemRegion> regions;
  for (uint32_t quarter = 0; quarter < 4; ++quarter) {
    regions.push_back({tmem_lane(address) + quarter * kWarpLanes, 16, column, columns});
  }
  return regions;
}

std::vector<TmemRegion> d_regions(const Umma& op) {
  return row_regions(op, op.d_address, is_layout_b(op) ? op.instruction.n / 2 : op.instruction.n);
}

std::vector<TmemRegion> a_regions(const Umma& op) {
  if (!op.a_in_tmem) return {};
  return row_regions(op, op.a_address, kAColumns);
}

void check_tmem_operands(const Umma& op) {
  const uint32_t lane = tmem_lane(op.d_address);
  require(lane == 0 || (is_layout_f(op) && lane == 16),
          "lane " + std::to_string(lane) + " of D's address: must be 0, or 16 for M = 64 (PTX 9.7.16.10.5)");
  if (op.a_in_tmem) {
    require(op.instruction.a_major == OperandMajor::kK, "A in tensor memory cannot be transposed");
    require(format_bits(op.instruction.a_format) >= 8, "6- and 4-bit A in tensor memory is not supported");
    require(tmem_lane(op.a_address) == lane, "A and D must have the same lane alignment (PTX 9.7.16.10.5)");
  }
  for (const TmemRegion& region : d_regions(op)) check_tmem_region(region, "tcgen05.mma: D");
  for (const TmemRegion& region : a_regions(op)) check_tmem_region(region, "tcgen05.mma: A");
}

// The lane of D's address plus this is the lane of row r.
uint32_t row_lane(const Umma& op, uint32_t row) { return is_layout_f(op) ? row / 16 * kWarpLanes + row % 16 : row; }

// A of one CTA, [rows][k], for the rows of lanes `first_lane` + ...
void read_a(const Umma& op, const UmmaCta& cta, uint32_t first_lane, std::vector<float>& values) {
  const UmmaInstruction& instruction = op.instruction;
  const uint32_t rows = rows_per_cta(op), k = k_extent(op);
  values.resize(rows * k);
  if (op.a_in_tmem) {
    const uint32_t count = chunk_elements(instruction.a_format);
    for (uint32_t row = 0; row < rows; ++row) {
      const uint32_t* cells = cta.tmem->row(first_lane + tmem_lane(op.a_address) + row_lane(op, row));
      const uint8_t* bytes = reinterpret_cast<const uint8_t*>(cells + tmem_column(op.a_address));
      for (uint32_t chunk = 0; chunk < kMmaKBytes / kChunkBytes; ++chunk) {
        decode_chunk(instruction.a_format, bytes + chunk * kChunkBytes, &values[row * k + chunk * count]);
      }
    }
  } else {
    read_operand(cta.shared, op.a, instruction.a_major, instruction.a_format, rows, values.data(), k, 1);
  }
  if (instruction.negate_a) {
    for (float& value : values) value = -value;
  }
}

// B, [k][n], gathered from every CTA.
std::vector<float> read_b(const Umma& op, std::span<const UmmaCta> ctas) {
  const UmmaInstruction& instruction = op.instruction;
  const uint32_t columns = b_columns_per_cta(op);
  std::vector<float> values(instruction.n * k_extent(op));
  for (uint32_t c = 0; c < ctas.size(); ++c) {
    read_operand(ctas[c].shared, op.b, instruction.b_major, instruction.b_format, columns, &values[c * columns], 1,
                 instruction.n);
  }
  if (instruction.negate_b) {
    for (float& value : values) value = -value;
  }
  return values;
}

// D[rows of `cells`][columns of b] of one CTA. An f16 D passes through a float32 copy.
void multiply(const Umma& op, const std::vector<float>& a, const float* b, uint32_t columns,
              const std::vector<uint32_t*>& cells) {
  const uint32_t rows = rows_per_cta(op), k = k_extent(op), n = op.instruction.n;
  const float scale = op.accumulate ? std::ldexp(1.0f, -static_cast<int>(op.scale_input_d)) : 0;
  const auto accumulate = [&](uint32_t* const* d) {
    const UmmaInstruction& mma = op.instruction;
    if (!op.fused_sum) return multiply_accumulate(a.data(), b, n, rows, columns, k, scale, d);
    const FusedSum sum = FusedSum::of_umma(mma.a_format, mma.b_format, mma.f32_result);
    fused_multiply_accumulate(sum, a.data(), b, n, rows, columns, k, scale, d);
  };
  if (op.instruction.f32_result) return accumulate(cells.data());

  std::vector<uint32_t> wide(rows * columns);
  std::vector<uint32_t*> wide_rows(rows);
  for (uint32_t row = 0; row < rows; ++row) {
    wide_rows[row] = &wide[row * columns];
    for (uint32_t j = 0; j < columns; ++j) {
      wide_rows[row][j] = std::bit_cast<uint32_t>(f16_to_f32(static_cast<uint16_t>(cells[row][j])));
    }
  }
  accumulate(wide_rows.data());
  for (uint32_t row = 0; row < rows; ++row) {
    for (uint32_t j = 0; j < columns; ++j) cells[row][j] = f32_to_f16(std::bit_cast<float>(wide_rows[row][j]));
  }
}

}  // namespace

void check_umma(const Umma& op) {
  const UmmaInstruction& instruction = op.instruction;
  check_shape(op);
  if (!op.a_in_tmem) check_operand("A", instruction.a_format, instruction.a_major, op.a);
  check_operand("B", instruction.b_format, instruction.b_major, op.b);
  require(op.scale_input_d <= 15, "scale-input-d must be 0 to 15");
  require(op.scale_input_d == 0 || instruction.kind == UmmaKind::kF16 || instruction.kind == UmmaKind::kTf32,
          "scale-input-d is for kind::f16 and kind::tf32");
  check_tmem_operands(op);
  check_umma_scales(op);
}

std::vector<OperandChunk> umma_shared_chunks(const Umma& op) {
  check_umma(op);
  const UmmaInstruction& instruction = op.instruction;
  std::vector<OperandChunk> chunks;
  const auto add = [&](const SharedMatrix& matrix, OperandMajor major, NumberFormat format, uint32_t mn) {
    for_each_chunk(matrix, major, format, mn, [&](uint32_t address, uint32_t, uint32_t) {
      chunks.push_back({address, chunk_data_bytes(format)});
    });
  };
  if (!op.a_in_tmem) add(op.a, instruction.a_major, instruction.a_format, rows_per_cta(op));
  add(op.b, instruction.b_major, instruction.b_format, b_columns_per_cta(op));
  return chunks;
}

std::vector<TmemRegion> umma_d_regions(const Umma& op) {
  check_umma(op);
  return d_regions(op);
}

std::vector<TmemRegion> umma_a_regions(const Umma& op) {
  check_umma(op);
  return a_regions(op);
}

std::vector<TmemRegion> umma_scale_regions(const Umma& op) {
  if (!is_block_scaled(op.instruction.kind)) return {};
  check_umma(op);
  return scale_regions(op);
}

void execute_umma(const Umma& op, std::span<const UmmaCta> ctas) {
  check_umma(op);
  require(ctas.size() == op.cta_group, "needs as many CTAs as its cta_group");
  const uint32_t rows = rows_per_cta(op), halves = is_layout_b(op) ? 2 : 1;
  const uint32_t columns = op.instruction.n / halves;
  const bool scaled = is_block_scaled(op.instruction.kind);
  const std::vector<float> b = read_b(op, ctas);
  std::vector<float> a;
  std::vector<uint32_t*> cells(rows);
  std::vector<uint32_t> discarded(columns);  // stands in for disabled lanes
  for (uint32_t c = 0; c < ctas.size(); ++c) {
    for (uint32_t half = 0; half < halves; ++half) {
      if (half == 0 || op.a_in_tmem) read_a(op, ctas[c], half * rows, a);
      for (uint32_t row = 0; row < rows; ++row) {
        const uint32_t lane = tmem_lane(op.d_address) + half * rows + row_lane(op, row);
        const bool disabled = op.disable_output_lane[4 * c + lane / 32] >> lane % 32 & 1;
        cells[row] = disabled ? discarded.data() : ctas[c].tmem->row(lane) + tmem_column(op.d_address);
      }
      if (scaled)
        multiply_scaled(op, a, b, *ctas[c].tmem, cells);
      else
        multiply(op, a, &b[half * columns], columns, cells);
    }
  }
}

}  // namespace jaxbw::emulator
