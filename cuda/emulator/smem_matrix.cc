#include "smem_matrix.h"

#include <string>

#include "bits.h"
#include "error.h"

namespace jaxbw::emulator {

void SharedView::fail_outside(uint32_t address) const {
  throw Error("a matrix operand reaches shared address " + std::to_string(address) + ", outside [" +
              std::to_string(base) + ", " + std::to_string(base + bytes) + ")");
}

SharedMatrix decode_shared_matrix(uint64_t descriptor, Swizzle swizzle) {
  return {.start = static_cast<uint32_t>(bit_field(descriptor, 0, 14)) << 4,
          .leading_offset = static_cast<uint32_t>(bit_field(descriptor, 16, 14)) << 4,
          .stride_offset = static_cast<uint32_t>(bit_field(descriptor, 32, 14)) << 4,
          .base_offset = static_cast<uint32_t>(bit_field(descriptor, 49, 3)),
          .swizzle = swizzle};
}

uint32_t chunk_address(const SharedMatrix& matrix, OperandMajor major, uint32_t outer, uint32_t inner) {
  const uint32_t span = swizzle_span(matrix.swizzle);
  const uint32_t lines = matrix.swizzle == Swizzle::k128BAtom32B ? 4 : 8;
  uint32_t address = matrix.start + outer % lines * span;
  if (matrix.swizzle == Swizzle::kNone) {
    const bool k_major = major == OperandMajor::kK;
    return address + outer / lines * (k_major ? matrix.stride_offset : matrix.leading_offset) +
           inner * (k_major ? matrix.leading_offset : matrix.stride_offset);
  }
  address += outer / lines * matrix.stride_offset;
  if (major == OperandMajor::kK) {
    address += inner * kChunkBytes;
  } else {
    address += inner * kChunkBytes % span + inner * kChunkBytes / span * matrix.leading_offset;
  }
  return address ^ swizzle_mask(matrix.swizzle, address - (matrix.base_offset << 7));
}

void read_operand(const SharedView& shared, const SharedMatrix& matrix, OperandMajor major, NumberFormat format,
                  uint32_t mn, float* values, uint32_t row_stride, uint32_t k_stride) {
  const uint32_t count = chunk_elements(format);
  const bool k_major = major == OperandMajor::kK;
  const uint32_t outer_stride = k_major ? row_stride : k_stride, inner_stride = k_major ? k_stride : row_stride;
  for_each_chunk(matrix, major, format, mn, [&](uint32_t address, uint32_t outer, uint32_t inner) {
    float* first = values + outer * outer_stride + inner * count * inner_stride;
    const uint8_t* bytes = shared.at(address, kChunkBytes);
    if (inner_stride == 1) return decode_chunk(format, bytes, first);
    float chunk[32];
    decode_chunk(format, bytes, chunk);
    for (uint32_t i = 0; i < count; ++i) first[i * inner_stride] = chunk[i];
  });
}

}  // namespace jaxbw::emulator
