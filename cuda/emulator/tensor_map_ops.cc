// tensormap.replace and tensormap.cp_fenceproxy (PTX 9.7.9.27): kernels that make or change tensor maps.
//
// Between replacements a map may be none yet, so its bits are written (tensor_map.h) and not its meaning. What TMA
// reads of maps the race detector does not see, nor what these write of it.
#include <algorithm>
#include <array>
#include <cstring>

#include "decoder.h"
#include "lanes.h"
#include "operands.h"
#include "tensor_map.h"

namespace jaxbw::emulator {
namespace {

constexpr uint32_t kHalf = kTensorMapBytes / 2;  // as much as one access reaches

std::array<uint8_t*, 2> halves(Step& s, const Instruction& in, Space space, uint32_t source, uint64_t offset,
                               uint32_t lane, bool write) {
  const uint64_t address = lane_address(s, in.s[source], offset, lane);
  std::array<uint8_t*, 2> out;
  for (uint32_t i = 0; i < 2; ++i) {
    const Location at = s.machine.locate(s, space, address + i * kHalf, kHalf, lane, write);
    if (write && at.undefined) std::memset(at.undefined, 0, kHalf);
    if (at.cta) s.machine.touch_shared(s, uint8_t(lane), at, kHalf, write);
    out[i] = at.bytes;
  }
  return out;
}

// in.s: the map, the value; target: TensorMapField; detail: space, and the dimension from bit 8 on.
void replace(Step& s, const Instruction& in) {
  check_use(s, in.s[0], "an address");
  check_use(s, in.s[1], "a field of a tensor map");
  for_lanes(s.active, [&](uint32_t lane) {
    const auto parts = halves(s, in, Space(in.detail & 255), 0, in.immediate, lane, true);
    std::array<uint8_t, kTensorMapBytes> map;
    for (uint32_t i = 0; i < 2; ++i) std::memcpy(map.data() + i * kHalf, parts[i], kHalf);
    replace_tensor_map_field(map, TensorMapField(in.target), uint32_t(in.detail >> 8), lane_value(s, in.s[1], lane));
    for (uint32_t i = 0; i < 2; ++i) std::memcpy(parts[i], map.data() + i * kHalf, kHalf);
  });
}

// The lanes give the same addresses, and copy once. in.s: from, at offset `detail`, and to.
void copy_map(Step& s, const Instruction& in) {
  const uint32_t lane = first_lane(s);
  for (uint32_t i = 0; i < 2; ++i) check_use(s, in.s[i], "an address");
  const auto from = halves(s, in, Space::kShared, 0, in.detail, lane, false),
             to = halves(s, in, Space::kGlobal, 1, in.immediate, lane, true);
  for (uint32_t i = 0; i < 2; ++i) std::memcpy(to[i], from[i], kHalf);
}

constexpr std::pair<std::string_view, TensorMapField> kFields[] = {
    {"global_address", TensorMapField::kAddress},
    {"rank", TensorMapField::kRank},
    {"box_dim", TensorMapField::kBox},
    {"global_dim", TensorMapField::kExtent},
    {"global_stride", TensorMapField::kStride},
    {"element_stride", TensorMapField::kElementStride},
    {"elemtype", TensorMapField::kType},
    {"interleave_layout", TensorMapField::kInterleave},
    {"swizzle_mode", TensorMapField::kSwizzle},
    {"swizzle_atomicity", TensorMapField::kAtomicity},
    {"fill_mode", TensorMapField::kFill},
};

}  // namespace

void decode_tensormap_replace(Decoder& d) {
  if (!d.has("tile") || !d.has("b1024")) d.fail("is .tile and .b1024");
  const auto* field =
      std::find_if(std::begin(kFields), std::end(kFields), [&](auto& each) { return d.has(each.first); });
  if (field == std::end(kFields)) d.fail("needs a field");
  const bool wide = field->second == TensorMapField::kAddress || field->second == TensorMapField::kStride;
  if (!d.has(wide ? "b64" : "b32")) d.fail(wide ? "takes a .b64" : "takes a .b32");
  const bool of_dimension = has_dimension(field->second);
  if (d.operands() != (of_dimension ? 3u : 2u)) d.fail("has too few operands, or too many");
  const Space space = d.address(0, d.has("global")        ? Space::kGlobal
                                   : d.has("shared::cta") ? Space::kShared
                                                          : Space::kGeneric);
  const uint64_t dimension = of_dimension ? d.constant(1) : 0;
  if (dimension >= kMaxRank) d.fail("has a dimension that no tensor map has");
  d.source(of_dimension ? 2 : 1, wide ? Type::k_b64 : Type::k_b32);
  d.out.target = uint32_t(field->second);
  d.out.detail = uint64_t(space) | dimension << 8;
  d.out.execute = replace;
}

void decode_tensormap_copy(Decoder& d) {
  if (!d.has("aligned") || d.constant(2) != kTensorMapBytes) d.fail("is .sync.aligned, of 128 bytes");
  d.address(1, Space::kShared);
  d.out.detail = d.out.immediate;
  d.address(0, Space::kGlobal);
  d.out.execute = copy_map;
}

}  // namespace jaxbw::emulator
