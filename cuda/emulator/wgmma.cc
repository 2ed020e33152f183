#include "wgmma.h"

#include <bit>
#include <cstring>
#include <string>

#include "bits.h"
#include "error.h"
#include "fused_sum.h"
#include "mma_kernel.h"

namespace jaxbw::emulator {
namespace {

void require_wgmma(bool condition, const std::string& rule) {
  if (!condition) throw Error("wgmma: " + rule);
}

uint32_t k_extent(const Wgmma& op) { return kMmaKBytes / container_bytes(op.a_format); }

bool is_fp8(NumberFormat format) { return format == NumberFormat::kE4M3 || format == NumberFormat::kE5M2; }

// A, [64][k].
std::vector<float> read_a(const Wgmma& op, const SharedView& shared, std::span<const uint32_t> registers) {
  const uint32_t k = k_extent(op);
  std::vector<float> values(kWgmmaM * k);
  if (!op.a_in_registers) {
    read_operand(shared, op.a, op.a_major, op.a_format, kWgmmaM, values.data(), k, 1);
  } else {
    require_wgmma(registers.size() == kWgmmaARegisters * kWarpgroupThreads, "A in registers is 4 registers a thread");
    const uint32_t count = 4 / container_bytes(op.a_format);
    for (uint32_t reg = 0; reg < kWgmmaARegisters; ++reg) {
      for (uint32_t thread = 0; thread < kWarpgroupThreads; ++thread) {
        uint8_t chunk[kChunkBytes] = {};
        float decoded[kChunkBytes];
        std::memcpy(chunk, &registers[reg * kWarpgroupThreads + thread], 4);
        decode_chunk(op.a_format, chunk, decoded);
        const FragmentPosition at = wgmma_a_position(op.a_format, thread, reg);
        std::memcpy(&values[at.row * k + at.column], decoded, count * sizeof(float));
      }
    }
  }
  if (op.negate_a) {
    for (float& value : values) value = -value;
  }
  return values;
}

// B, [k][n].
std::vector<float> read_b(const Wgmma& op, const SharedView& shared) {
  std::vector<float> values(k_extent(op) * op.n);
  read_operand(shared, op.b, op.b_major, op.b_format, op.n, values.data(), 1, op.n);
  if (op.negate_b) {
    for (float& value : values) value = -value;
  }
  return values;
}

}  // namespace

SharedMatrix decode_wgmma_shared_descriptor(uint64_t descriptor) {
  require_wgmma(bit_field(descriptor, 14, 2) == 0 && bit_field(descriptor, 30, 2) == 0 &&
                    bit_field(descriptor, 46, 3) == 0 && bit_field(descriptor, 52, 10) == 0,
                "matrix descriptor: bits 14-15, 30-31, 46-48 and 52-61 belong to no field (PTX 9.7.15.5.1.2.2)");
  constexpr Swizzle kModes[] = {Swizzle::kNone, Swizzle::k128B, Swizzle::k64B, Swizzle::k32B};
  return decode_shared_matrix(descriptor, kModes[bit_field(descriptor, 62, 2)]);
}

void check_wgmma(const Wgmma& op) {
  require_wgmma(op.n % 8 == 0 && op.n >= 8 && op.n <= 256, "N must be a multiple of 8 up to 256 (PTX 9.7.15.2)");
  require_wgmma(format_bits(op.a_format) >= 8 && format_bits(op.b_format) >= 8,
                "6- and 4-bit formats do not exist (PTX 9.7.15.3)");
  require_wgmma(op.a_format == op.b_format || (is_fp8(op.a_format) && is_fp8(op.b_format)),
                "A and B must have the same type unless both are fp8 (PTX 9.7.15.5.2)");
  require_wgmma(op.f32_result || op.a_format == NumberFormat::kF16 || is_fp8(op.a_format),
                "an f16 D needs f16 or fp8 operands (PTX 9.7.15.3)");
  const bool transposable = op.a_format == NumberFormat::kF16 || op.a_format == NumberFormat::kBf16;
  require_wgmma(transposable || (op.a_major == OperandMajor::kK && op.b_major == OperandMajor::kK),
                "only f16 and bf16 operands can be transposed (PTX 9.7.15.5.2)");
  require_wgmma(!op.a_in_registers || op.a_major == OperandMajor::kK, "A in registers cannot be transposed");
}

uint32_t wgmma_d_registers(const Wgmma& op) { return op.f32_result ? op.n / 2 : op.n / 4; }

FragmentPosition wgmma_d_position(bool f32_result, uint32_t thread, uint32_t reg) {
  const uint32_t warp = thread / 32, group = thread % 32 / 4, pair = f32_result ? reg / 2 : reg;
  return {16 * warp + group + 8 * (pair % 2), 8 * (pair / 2) + 2 * (thread % 4) + (f32_result ? reg % 2 : 0)};
}

FragmentPosition wgmma_a_position(NumberFormat format, uint32_t thread, uint32_t reg) {
  const uint32_t warp = thread / 32, group = thread % 32 / 4, elements = 4 / container_bytes(format);
  return {16 * warp + group + 8 * (reg % 2), 4 * elements * (reg / 2) + elements * (thread % 4)};
}

std::vector<uint32_t> wgmma_shared_chunks(const Wgmma& op) {
  check_wgmma(op);
  std::vector<uint32_t> addresses;
  const auto add = [&](uint32_t address, uint32_t, uint32_t) { addresses.push_back(address); };
  if (!op.a_in_registers) for_each_chunk(op.a, op.a_major, op.a_format, kWgmmaM, add);
  for_each_chunk(op.b, op.b_major, op.b_format, op.n, add);
  return addresses;
}

void execute_wgmma(const Wgmma& op, const SharedView& shared, std::span<const uint32_t> a, std::span<uint32_t> d) {
  check_wgmma(op);
  const uint32_t registers = wgmma_d_registers(op), n = op.n;
  require_wgmma(d.size() == size_t{registers} * kWarpgroupThreads, "wrong number of accumulator registers");
  const std::vector<float> left = read_a(op, shared, a), right = read_b(op, shared);

  std::vector<uint32_t> dense(kWgmmaM * n);
  std::array<uint32_t*, kWgmmaM> rows;
  for (uint32_t row = 0; row < kWgmmaM; ++row) rows[row] = &dense[row * n];
  // Row and column of a register are sums of the thread's part and the register's.
  std::array<uint32_t, kWarpgroupThreads> thread_offset;
  for (uint32_t thread = 0; thread < kWarpgroupThreads; ++thread) {
    const FragmentPosition at = wgmma_d_position(op.f32_result, thread, 0);
    thread_offset[thread] = at.row * n + at.column;
  }
  const auto for_each_register = [&](auto visit) {
    for (uint32_t reg = 0; reg < registers; ++reg) {
      const FragmentPosition at = wgmma_d_position(op.f32_result, 0, reg);
      uint32_t* const cells = &dense[at.row * n + at.column];
      for (uint32_t thread = 0; thread < kWarpgroupThreads; ++thread) {
        visit(d[reg * kWarpgroupThreads + thread], cells + thread_offset[thread]);
      }
    }
  };
  if (op.f32_result) {
    for_each_register([](uint32_t reg, uint32_t* cell) { *cell = reg; });
  } else {
    for_each_register([](uint32_t reg, uint32_t* cell) {
      cell[0] = std::bit_cast<uint32_t>(f16_to_f32(static_cast<uint16_t>(reg)));
      cell[1] = std::bit_cast<uint32_t>(f16_to_f32(static_cast<uint16_t>(reg >> 16)));
    });
  }
  const uint32_t k = k_extent(op);
  const float scale = op.accumulate ? 1 : 0;
  if (op.fused_sum) {
    const FusedSum sum = FusedSum::of_wgmma(op.a_format, op.b_format, op.f32_result);
    fused_multiply_accumulate(sum, left.data(), right.data(), n, kWgmmaM, n, k, scale, rows.data());
  } else {
    multiply_accumulate(left.data(), right.data(), n, kWgmmaM, n, k, scale, rows.data());
  }
  if (op.f32_result) {
    for_each_register([](uint32_t& reg, const uint32_t* cell) { reg = *cell; });
  } else {
    for_each_register([](uint32_t& reg, const uint32_t* cell) {
      reg = f32_to_f16(std::bit_cast<float>(cell[0])) | uint32_t{f32_to_f16(std::bit_cast<float>(cell[1]))} << 16;
    });
  }
}

}  // namespace jaxbw::emulator
