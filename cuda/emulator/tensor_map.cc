#include "tensor_map.h"

#include <cstdio>
#include <cstring>
#include <iterator>
#include <string>

#include "bits.h"
#include "error.h"

namespace jaxbw::emulator {
namespace {

// Element type field and tf32 bit of each TensorMapType (PTX table 33 and ptxas's expansion of it:
// the codes are not those of the driver's enum, and tf32 is f32 with a bit of its own).
constexpr struct {
  uint8_t code, tf32, bits;
} kTypes[] = {{0, 0, 8},  {1, 0, 16},  {2, 0, 32}, {3, 0, 32}, {4, 0, 64}, {5, 0, 64}, {6, 0, 16}, {7, 0, 32},
              {9, 0, 64}, {10, 0, 16}, {8, 0, 32}, {7, 1, 32}, {8, 1, 32}, {11, 0, 4}, {12, 0, 4}, {13, 0, 6}};
constexpr uint32_t kTypeCount = sizeof(kTypes) / sizeof(kTypes[0]);

// Swizzle mode and atomicity fields of each Swizzle.
constexpr struct {
  uint8_t mode, atomicity;
} kSwizzles[] = {{0, 0}, {1, 0}, {2, 0}, {3, 0}, {3, 1}, {3, 2}, {3, 3}};
constexpr uint32_t kSwizzleCount = sizeof(kSwizzles) / sizeof(kSwizzles[0]);

// Bits of word 2 with a meaning.
constexpr uint32_t kKnownControlBits = 0x003ffff0;

// Two limits that no document states; the driver of an H200 takes boxes of 224640 bytes and none of 256256, and
// the address 2^56 but not 2^64 - 16. Hence the shared memory of a CTA, and the width of a virtual address.
constexpr uint64_t kMaxBoxBytes = 227 * 1024;
constexpr uint32_t kAddressBits = 57;

void require_map(bool condition, const std::string& rule) {
  if (!condition) throw Error("tensor map: " + rule);
}

std::string indexed(const char* name, uint32_t i, uint64_t value) {
  return std::string(name) + "[" + std::to_string(i) + "] = " + std::to_string(value) + " ";
}

bool is_floating_point(TensorMapType type) { return type >= TensorMapType::kF16 && type <= TensorMapType::kTf32Ftz; }

void check_packed_types(const TensorMapFields& f) {
  if (f.type == TensorMapType::k16U4Align8B)
    require_map(f.extents[0] % 2 == 0, "16U4_ALIGN8B: globalDim[0] must be even");
  if (!is_padded(f.type)) return;
  require_map(f.extents[0] % 128 == 0, "16U4/16U6_ALIGN16B: globalDim[0] must be a multiple of 128");
  require_map(f.box[0] == 128, "16U4/16U6_ALIGN16B: boxDim[0] must be 128");
  require_map(f.swizzle == Swizzle::kNone || f.swizzle == Swizzle::k128B || f.swizzle == Swizzle::k128BAtom32B ||
                  (f.swizzle == Swizzle::k128BAtom64B && f.type == TensorMapType::k16U6Align16B),
              "16U4/16U6_ALIGN16B: this swizzle mode is not supported");
  require_map(f.type != TensorMapType::k16U6Align16B || f.interleave == Interleave::kNone,
              "16U6_ALIGN16B: interleave must be NONE");
}

// Bytes of a box, counting whole element strides only: what word 16 holds, and the driver limits.
uint64_t whole_box_bytes(const TensorMapFields& f) {
  uint64_t elements = 1;
  for (uint32_t i = 0; i < f.rank; ++i) elements *= f.box[i] / f.element_strides[i];
  return elements * element_bits(f.type) / 8;
}

}  // namespace

uint32_t element_bits(TensorMapType type) { return kTypes[static_cast<uint32_t>(type)].bits; }

void check_tensor_map(const TensorMapFields& f) {
  require_map(static_cast<uint32_t>(f.type) < kTypeCount, "tensorDataType is not a CUtensorMapDataType");
  require_map(static_cast<uint32_t>(f.swizzle) < kSwizzleCount, "swizzle is not a CUtensorMapSwizzle");
  require_map(f.interleave <= Interleave::k32B, "interleave is not a CUtensorMapInterleave");
  require_map(f.l2_promotion <= L2Promotion::k256B, "l2Promotion is not a CUtensorMapL2promotion");
  require_map(f.fill <= OobFill::kNan, "oobFill is not a CUtensorMapFloatOOBfill");
  require_map(f.rank >= 1 && f.rank <= kMaxRank, "tensorRank must be 1 to 5, not " + std::to_string(f.rank));
  require_map(f.interleave == Interleave::kNone || f.rank >= 3, "an interleaved layout needs tensorRank >= 3");

  const uint64_t alignment = f.interleave == Interleave::k32B || is_padded(f.type) ? 32 : 16;
  const std::string multiple = "must be a multiple of " + std::to_string(alignment);
  require_map(f.address % alignment == 0, "globalAddress " + multiple);
  require_map(f.address >> kAddressBits == 0, "globalAddress is no virtual address");
  for (uint32_t i = 0; i < f.rank; ++i) {
    require_map(f.extents[i] >= 1 && f.extents[i] <= uint64_t{1} << 32,
                indexed("globalDim", i, f.extents[i]) + "must be 1 to 2^32");
    require_map(f.box[i] >= 1 && f.box[i] <= 256, indexed("boxDim", i, f.box[i]) + "must be 1 to 256");
    // Without interleave TMA ignores the first of them, but the driver checks it.
    require_map(f.element_strides[i] >= 1 && f.element_strides[i] <= 8,
                indexed("elementStrides", i, f.element_strides[i]) + "must be 1 to 8");
  }
  for (uint32_t i = 0; i + 1 < f.rank; ++i) {
    require_map(f.strides[i] % alignment == 0, indexed("globalStrides", i, f.strides[i]) + multiple);
    require_map(f.strides[i] < uint64_t{1} << 40, indexed("globalStrides", i, f.strides[i]) + "must be less than 2^40");
  }

  check_packed_types(f);
  const uint64_t inner_bits = uint64_t{f.box[0]} * element_bits(f.type);
  if (f.interleave == Interleave::kNone) {
    require_map(inner_bits % 128 == 0, "boxDim[0] must span a multiple of 16 bytes");
    require_map(f.swizzle == Swizzle::kNone || is_padded(f.type) || inner_bits <= uint64_t{8} * swizzle_span(f.swizzle),
                "boxDim[0] spans " + std::to_string(inner_bits / 8) + " bytes, more than the swizzle's " +
                    std::to_string(swizzle_span(f.swizzle)));
  }
  // The documentation wants SWIZZLE_32B with INTERLEAVE_32B; the driver does not.
  require_map(whole_box_bytes(f) <= kMaxBoxBytes, "boxDim does not fit into shared memory");
  require_map(f.fill == OobFill::kZero || is_floating_point(f.type), "a NaN fill needs a floating-point type");
}

void replace_tensor_map_field(std::span<uint8_t, kTensorMapBytes> map, TensorMapField field, uint32_t dimension,
                              uint64_t value) {
  const auto put = [&](uint32_t word, uint32_t first, uint32_t width, uint64_t bits) {
    require_map(bits >> width == 0, "tensormap.replace: " + std::to_string(value) + " does not fit");
    uint32_t all;
    std::memcpy(&all, &map[4 * word], 4);
    const auto mask = static_cast<uint32_t>(((uint64_t{1} << width) - 1) << first);
    all = (all & ~mask) | static_cast<uint32_t>(bits << first);
    std::memcpy(&map[4 * word], &all, 4);
  };
  switch (field) {
    case TensorMapField::kAddress:
      put(0, 0, 32, value & 0xffffffff);
      return put(1, 0, 32, value >> 32);
    case TensorMapField::kRank:
      return put(2, 4, 3, value);
    case TensorMapField::kBox:
      return dimension == 0 ? put(13, 24, 8, value - 1) : put(14, 8 * (dimension - 1), 8, value - 1);
    case TensorMapField::kExtent:
      return put(8 + dimension, 0, 32, uint32_t(value) - 1u);  // 0 stands for 2^32
    case TensorMapField::kStride:
      require_map(dimension + 1 < kMaxRank,
                  "tensormap.replace: there are " + std::to_string(kMaxRank - 1) + " strides");
      put(3 + dimension, 0, 32, value >> 4 & 0xffffffff);
      return put(7, 4 * dimension, 4, value >> 36);
    case TensorMapField::kElementStride:
      return put(13, 3 * dimension, 3, value - 1);
    case TensorMapField::kType: {
      constexpr TensorMapType kPtxTypes[] = {
          TensorMapType::kU8,          TensorMapType::kU16,         TensorMapType::kU32,
          TensorMapType::kS32,         TensorMapType::kU64,         TensorMapType::kS64,
          TensorMapType::kF16,         TensorMapType::kF32,         TensorMapType::kF32Ftz,
          TensorMapType::kF64,         TensorMapType::kBf16,        TensorMapType::kTf32,
          TensorMapType::kTf32Ftz,     TensorMapType::k16U4Align8B, TensorMapType::k16U4Align16B,
          TensorMapType::k16U6Align16B};
      require_map(value < std::size(kPtxTypes), "tensormap.replace: no element type " + std::to_string(value));
      const auto& type = kTypes[static_cast<uint32_t>(kPtxTypes[value])];
      put(2, 7, 4, type.code);
      return put(2, 16, 1, type.tf32);
    }
    case TensorMapField::kInterleave:
      return put(2, 11, 2, value);
    case TensorMapField::kSwizzle:
      return put(2, 13, 2, value);
    case TensorMapField::kAtomicity:
      return put(2, 19, 3, value);
    case TensorMapField::kFill:
      return put(2, 15, 1, value);
  }
}

std::array<uint8_t, kTensorMapBytes> encode_tensor_map(const TensorMapFields& f) {
  check_tensor_map(f);
  const auto& type = kTypes[static_cast<uint32_t>(f.type)];
  const auto& swizzle = kSwizzles[static_cast<uint32_t>(f.swizzle)];
  std::array<uint32_t, kTensorMapBytes / 4> words = {};
  words[0] = static_cast<uint32_t>(f.address);
  words[1] = static_cast<uint32_t>(f.address >> 32);
  words[2] = (f.rank - 1) << 4 | uint32_t{type.code} << 7 | static_cast<uint32_t>(f.interleave) << 11 |
             uint32_t{swizzle.mode} << 13 | static_cast<uint32_t>(f.fill) << 15 | uint32_t{type.tf32} << 16 |
             static_cast<uint32_t>(f.l2_promotion) << 17 | uint32_t{swizzle.atomicity} << 19;
  for (uint32_t i = 0; i + 1 < f.rank; ++i) {
    words[3 + i] = static_cast<uint32_t>(f.strides[i] >> 4);
    words[7] |= static_cast<uint32_t>(f.strides[i] >> 36) << 4 * i;
  }
  for (uint32_t i = 0; i < f.rank; ++i) {
    words[8 + i] = static_cast<uint32_t>(f.extents[i] - 1);
    words[13] |= (f.element_strides[i] - 1) << 3 * i;
    if (i > 0) words[14] |= (f.box[i] - 1) << 8 * (i - 1);
  }
  words[13] |= (f.box[0] - 1) << 24;
  words[16] = static_cast<uint32_t>(whole_box_bytes(f));
  words[18] = f.swizzle == Swizzle::kNone ? 16 : 8 * swizzle_span(f.swizzle);
  std::array<uint8_t, kTensorMapBytes> bytes;
  std::memcpy(bytes.data(), words.data(), kTensorMapBytes);
  return bytes;
}

TensorMapFields decode_tensor_map(std::span<const uint8_t, kTensorMapBytes> bytes) {
  std::array<uint32_t, kTensorMapBytes / 4> words;
  std::memcpy(words.data(), bytes.data(), kTensorMapBytes);
  const uint32_t control = words[2];
  if (const uint32_t unknown = control & ~kKnownControlBits) {
    char text[64];
    std::snprintf(text, sizeof(text), "bits 0x%08x of word 2 have no known meaning", unknown);
    require_map(false, text);
  }

  TensorMapFields f;
  uint32_t type = 0, swizzle = 0;
  while (type < kTypeCount &&
         (kTypes[type].code != bit_field(control, 7, 4) || kTypes[type].tf32 != bit_field(control, 16, 1))) {
    ++type;
  }
  while (swizzle < kSwizzleCount && (kSwizzles[swizzle].mode != bit_field(control, 13, 2) ||
                                     kSwizzles[swizzle].atomicity != bit_field(control, 19, 3))) {
    ++swizzle;
  }
  f.type = static_cast<TensorMapType>(type);
  f.swizzle = static_cast<Swizzle>(swizzle);
  f.rank = static_cast<uint32_t>(bit_field(control, 4, 3)) + 1;
  f.interleave = static_cast<Interleave>(bit_field(control, 11, 2));
  f.fill = static_cast<OobFill>(bit_field(control, 15, 1));
  f.l2_promotion = static_cast<L2Promotion>(bit_field(control, 17, 2));
  f.address = words[0] | uint64_t{words[1]} << 32;
  require_map(f.rank <= kMaxRank, "rank " + std::to_string(f.rank) + " in an encoded map");
  for (uint32_t i = 0; i < f.rank; ++i) {
    f.extents[i] = uint64_t{words[8 + i]} + 1;
    f.element_strides[i] = static_cast<uint32_t>(bit_field(words[13], 3 * i, 3)) + 1;
    f.box[i] = static_cast<uint32_t>(i == 0 ? words[13] >> 24 : bit_field(words[14], 8 * (i - 1), 8)) + 1;
  }
  for (uint32_t i = 0; i + 1 < f.rank; ++i) {
    f.strides[i] = (words[3 + i] | bit_field(words[7], 4 * i, 4) << 32) << 4;
  }
  check_tensor_map(f);
  return f;
}

}  // namespace jaxbw::emulator
