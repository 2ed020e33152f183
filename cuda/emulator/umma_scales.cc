#include "umma_scales.h"

#include <algorithm>
#include <bit>
#include <cmath>
#include <limits>
#include <string>

#include "error.h"
#include "fused_sum.h"
#include "mma_kernel.h"
#include "umma_rules.h"

namespace jaxbw::emulator {
namespace {

uint32_t scale_count(const Umma& op) { return k_extent(op) / op.block; }

void check_scales_of(const char* name, uint32_t address, uint32_t id, uint32_t count) {
  require(tmem_lane(address) == 0, std::string(name) + ": scales start in lane 0");
  require(id % count == 0, std::string(name) + ": scale factor id " + std::to_string(id) +
                               ", but an instruction with " + std::to_string(count) +
                               " scales along K needs a multiple of that");
}

bool overlap(const TmemRegion& a, const TmemRegion& b) {
  return a.column < b.column + b.columns && b.column < a.column + a.columns;
}

float decode_scale(uint32_t byte, bool ue8m0) {
  if (!ue8m0) return mini_to_f32(NumberFormat::kE4M3, byte & 0x7f);  // the sign bit is ignored
  return byte == 0xff ? std::numeric_limits<float>::quiet_NaN() : std::ldexp(1.0f, int(byte) - 127);
}

// [count][rows].
std::vector<float> read_scales(const TensorMemory& tmem, const Umma& op, uint32_t address, uint32_t id, uint32_t rows) {
  const uint32_t count = scale_count(op);
  std::vector<float> scales(count * rows);
  for (uint32_t r = 0; r < rows; ++r) {
    const uint32_t column = tmem_column(address) + r / kWarpLanes;
    for (uint32_t i = 0; i < count; ++i) {
      const auto byte_in = [&](uint32_t quarter) {
        return tmem.row(quarter * kWarpLanes + r % kWarpLanes)[column] >> 8 * (id + i) & 0xff;
      };
      const uint32_t byte = byte_in(0);
      for (uint32_t quarter = 1; quarter < kTmemLanes / kWarpLanes; ++quarter)
        require(byte_in(quarter) == byte, "the scales in column " + std::to_string(column) +
                                              " differ between the quarters of the lanes (tcgen05.cp.warpx4)");
      scales[i * rows + r] = decode_scale(byte, op.instruction.ue8m0_scales);
    }
  }
  return scales;
}

}  // namespace

void check_umma_scales(const Umma& op) {
  const UmmaKind kind = op.instruction.kind;
  if (!is_block_scaled(kind)) return;
  require(op.block == 32 || (op.block == 16 && kind == UmmaKind::kMxF4NvF4), "this kind has no blocks of that size");
  require(op.block == 16 || op.instruction.ue8m0_scales, "scales of blocks of 32 are ue8m0");
  require(!op.a_in_tmem, "a block-scaled A in tensor memory is not supported");
  require(std::all_of(op.disable_output_lane.begin(), op.disable_output_lane.end(), [](uint32_t w) { return w == 0; }),
          "a block-scaled kind cannot disable lanes");
  check_scales_of("A", op.sfa_address, op.instruction.sfa_id, scale_count(op));
  check_scales_of("B", op.sfb_address, op.instruction.sfb_id, scale_count(op));
  const TmemRegion d{0, kTmemLanes, tmem_column(op.d_address), op.instruction.n};
  for (const TmemRegion& region : scale_regions(op)) {
    check_tmem_region(region, "tcgen05.mma: scales");
    require(!overlap(region, d), "scales and D overlap in tensor memory");
  }
  require(!op.fused_sum || kind == UmmaKind::kMxF8F6F4, "fused sums of 4-bit kinds are not supported");
}

std::vector<TmemRegion> scale_regions(const Umma& op) {
  if (!is_block_scaled(op.instruction.kind)) return {};
  const auto region = [](uint32_t address, uint32_t rows) {
    return TmemRegion{0, kTmemLanes, tmem_column(address), (rows + kWarpLanes - 1) / kWarpLanes};
  };
  return {region(op.sfa_address, op.instruction.m / op.cta_group), region(op.sfb_address, op.instruction.n)};
}

void multiply_scaled(const Umma& op, const std::vector<float>& a, const std::vector<float>& b, const TensorMemory& tmem,
                     const std::vector<uint32_t*>& cells) {
  const UmmaInstruction& mma = op.instruction;
  const auto rows = uint32_t(cells.size());
  const uint32_t n = mma.n, k = k_extent(op), block = op.block;
  const std::vector<float> a_scales = read_scales(tmem, op, op.sfa_address, mma.sfa_id, rows);
  const std::vector<float> b_scales = read_scales(tmem, op, op.sfb_address, mma.sfb_id, n);
  if (op.fused_sum) {
    const FusedSum sum = FusedSum::of_umma(mma.a_format, mma.b_format, mma.f32_result);
    const FusedSum::Scales scales{a_scales.data(), b_scales.data()};
    return fused_multiply_accumulate(sum, a.data(), b.data(), n, rows, n, k, op.accumulate ? 1 : 0, cells.data(),
                                     &scales);
  }
  std::vector<float> part(rows * block), products(rows * n);
  std::vector<uint32_t*> lines(rows);
  for (uint32_t i = 0; i < rows; ++i) lines[i] = reinterpret_cast<uint32_t*>(&products[i * n]);
  for (uint32_t s = 0; s < k / block; ++s) {
    for (uint32_t i = 0; i < rows; ++i) std::copy_n(&a[i * k + s * block], block, &part[i * block]);
    multiply_accumulate(part.data(), &b[s * block * n], n, rows, n, block, 0, lines.data());
    for (uint32_t i = 0; i < rows; ++i) {
      const double scale = a_scales[s * rows + i];
      for (uint32_t j = 0; j < n; ++j) {
        const float initial = s || op.accumulate ? std::bit_cast<float>(cells[i][j]) : 0;
        // The two scales may differ by more than float32 spans.
        cells[i][j] = std::bit_cast<uint32_t>(float(initial + products[i * n + j] * (scale * b_scales[s * n + j])));
      }
    }
  }
}

}  // namespace jaxbw::emulator
