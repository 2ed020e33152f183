// The tensor map (CUtensorMap): 128 opaque bytes that describe a tensor in global memory and the box
// that one TMA instruction moves. Encoding takes the arguments of cuTensorMapEncodeTiled and applies the
// rules that its documentation states; decoding reads maps made here or by the driver.
//
// Layout, by 32-bit word. Every field but L2 promotion is taken from what ptxas 13.0 makes of
// tensormap.replace (PTX 9.7.9.28), which it expands into ordinary loads, bit-field inserts and stores:
//
//   0-1    global address
//   2      4-6 rank - 1 | 7-10 element type | 11-12 interleave | 13-14 swizzle | 15 fill | 16 tf32
//          17-18 L2 promotion (the only gap of that size; a hint, so it does not change any result)
//          19-21 swizzle atomicity | 22 96-byte swizzle (refused)
//   3-6    strides of dimensions 1-4 / 16, low 32 bits
//   7      the upper 4 bits of those, a nibble each
//   8-12   extents - 1 of dimensions 0-4
//   13     0-14 element strides - 1, three bits each | 24-31 box extent 0 - 1
//   14     box extents - 1 of dimensions 1-4, a byte each
//   16     bytes of a box, as far as whole element strides go | 18 bytes after which the swizzle repeats
//
// The driver alone writes words 16 and 18 (tests/emulator/calibration); tensormap.replace leaves them as they
// are, and they follow from the others, so they are not read here.
#pragma once

#include <array>
#include <cstdint>
#include <span>

#include "swizzle.h"

namespace jaxbw::emulator {

inline constexpr uint32_t kMaxRank = 5;
inline constexpr uint32_t kTensorMapBytes = 128;

// The values of CUtensorMapDataType.
enum class TensorMapType : uint8_t {
  kU8,
  kU16,
  kU32,
  kS32,
  kU64,
  kS64,
  kF16,
  kF32,
  kF64,
  kBf16,
  kF32Ftz,
  kTf32,
  kTf32Ftz,
  k16U4Align8B,
  k16U4Align16B,
  k16U6Align16B,
};

// The values of CUtensorMapInterleave, CUtensorMapL2promotion and CUtensorMapFloatOOBfill.
enum class Interleave : uint8_t { kNone, k16B, k32B };
enum class L2Promotion : uint8_t { kNone, k64B, k128B, k256B };
enum class OobFill : uint8_t { kZero, kNan };

uint32_t element_bits(TensorMapType type);

// Types whose elements are padded in shared memory: 16 of them stand packed in 8 or 12 bytes of each 16 (PTX 5.5.3).
constexpr bool is_padded(TensorMapType type) {
  return type == TensorMapType::k16U4Align16B || type == TensorMapType::k16U6Align16B;
}

// What a tensor map says: the arguments of cuTensorMapEncodeTiled. Dimension 0 is the contiguous one;
// entries past `rank` are 1 (extents, boxes, element strides) or 0 (strides).
struct TensorMapFields {
  TensorMapType type = TensorMapType::kU8;
  uint32_t rank = 1;
  uint64_t address = 0;
  std::array<uint64_t, kMaxRank> extents = {1, 1, 1, 1, 1};
  std::array<uint64_t, kMaxRank - 1> strides = {};  // bytes, of dimensions 1-4
  std::array<uint32_t, kMaxRank> box = {1, 1, 1, 1, 1};
  std::array<uint32_t, kMaxRank> element_strides = {1, 1, 1, 1, 1};
  Interleave interleave = Interleave::kNone;
  Swizzle swizzle = Swizzle::kNone;
  L2Promotion l2_promotion = L2Promotion::kNone;
  OobFill fill = OobFill::kZero;

  bool operator==(const TensorMapFields&) const = default;
};

// Throws Error naming the rule of cuTensorMapEncodeTiled that the fields break.
void check_tensor_map(const TensorMapFields& fields);

// What tensormap.replace writes (PTX 9.7.9.27): the bits of one field, whatever the others hold.
enum class TensorMapField : uint8_t {
  kAddress,
  kRank,
  kBox,
  kExtent,
  kStride,
  kElementStride,
  kType,
  kInterleave,
  kSwizzle,
  kAtomicity,
  kFill,
};
constexpr bool has_dimension(TensorMapField field) {
  return field >= TensorMapField::kBox && field <= TensorMapField::kElementStride;
}
// The values are those of the instruction: of the rank one less, of the element type PTX table 33's.
void replace_tensor_map_field(std::span<uint8_t, kTensorMapBytes> map, TensorMapField field, uint32_t dimension,
                              uint64_t value);

std::array<uint8_t, kTensorMapBytes> encode_tensor_map(const TensorMapFields& fields);

// Throws Error on bits without a known meaning, and on what check_tensor_map refuses.
TensorMapFields decode_tensor_map(std::span<const uint8_t, kTensorMapBytes> bytes);

}  // namespace jaxbw::emulator
