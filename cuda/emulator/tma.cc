#include "tma.h"

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstring>
#include <string>
#include <type_traits>

#include "error.h"
#include "number_formats.h"

namespace jaxbw::emulator {
namespace {

constexpr uint64_t kMostBytes = 256 * 1024;  // more than the shared memory of any SM
constexpr int64_t kStartAlignment = 16;      // bytes

void require_tma(bool supported, const char* what) {
  if (!supported) throw Error(std::string("tma: ") + what);
}

// Elements that the box spans in a dimension (cuTensorMapEncodeTiled, elementStrides).
uint32_t box_elements(const TensorMapFields& map, uint32_t dimension) {
  const uint32_t stride = dimension == 0 ? 1 : map.element_strides[dimension];
  return (map.box[dimension] + stride - 1) / stride;
}

// A row of the box in the tensor, and in shared memory, where each 8 bytes of a padded one have 16.
uint32_t row_bytes(const TensorMapFields& map) { return map.box[0] * element_bits(map.type) / 8; }
uint32_t shared_row_bytes(const TensorMapFields& map) { return row_bytes(map) * (is_padded(map.type) ? 2 : 1); }

// Whether the box is narrower than its swizzle span.
bool is_narrow(const TensorMapFields& map) {
  return map.swizzle != Swizzle::kNone && shared_row_bytes(map) < swizzle_span(map.swizzle);
}
// From one row in shared memory to the next.
uint32_t shared_row_pitch(const TensorMapFields& map) {
  return is_narrow(map) ? swizzle_span(map.swizzle) : shared_row_bytes(map);
}

// The part of bytes [0, bytes) of a row of the box, which starts at byte `first` of the tensor's row, that
// is moved.
struct ByteRange {
  int64_t begin, end;
};
ByteRange moved_bytes(const TensorMapFields& map, TmaDirection direction, int64_t first, uint32_t bytes) {
  int64_t size = static_cast<int64_t>(map.extents[0]) * element_bits(map.type) / 8;
  if (direction == TmaDirection::kStore) size = (size + kStartAlignment - 1) / kStartAlignment * kStartAlignment;
  return {std::clamp<int64_t>(-first, 0, bytes), std::clamp<int64_t>(size - first, 0, bytes)};
}

template <class T>
T value_at(const uint8_t* bytes) {
  T value;
  std::memcpy(&value, bytes, sizeof(T));
  return value;
}

template <class T, class Function>
void for_each_element(std::span<const uint8_t> source, std::span<uint8_t> destination, Function function) {
  for (size_t i = 0; i < source.size(); i += sizeof(T)) {
    const T result = function(value_at<T>(&destination[i]), value_at<T>(&source[i]));
    std::memcpy(&destination[i], &result, sizeof(T));
  }
}

[[noreturn]] void refuse_reduction() { throw Error("tma: this reduction does not take this element type"); }

template <class T>
void reduce_integer(Reduction op, std::span<const uint8_t> source, std::span<uint8_t> destination) {
  using Bits = std::make_unsigned_t<T>;
  const auto apply = [&](auto function) { for_each_element<T>(source, destination, function); };
  const bool counts = std::is_same_v<T, uint32_t>;
  switch (op) {
    case Reduction::kAdd:
      if (std::is_same_v<T, int64_t>) refuse_reduction();
      return apply([](T a, T b) { return static_cast<T>(static_cast<Bits>(a) + static_cast<Bits>(b)); });
    case Reduction::kMin:
      return apply([](T a, T b) { return std::min(a, b); });
    case Reduction::kMax:
      return apply([](T a, T b) { return std::max(a, b); });
    case Reduction::kInc:
      if (!counts) refuse_reduction();
      return apply([](T a, T b) { return static_cast<T>(a >= b ? 0 : a + 1); });
    case Reduction::kDec:
      if (!counts) refuse_reduction();
      return apply([](T a, T b) { return static_cast<T>(a == 0 || a > b ? b : a - 1); });
    case Reduction::kAnd:
      if (std::is_same_v<T, int64_t>) refuse_reduction();
      return apply([](T a, T b) { return static_cast<T>(a & b); });
    case Reduction::kOr:
      if (std::is_same_v<T, int64_t>) refuse_reduction();
      return apply([](T a, T b) { return static_cast<T>(a | b); });
    case Reduction::kXor:
      if (std::is_same_v<T, int64_t>) refuse_reduction();
      return apply([](T a, T b) { return static_cast<T>(a ^ b); });
  }
}

// min and max of two numbers return the one that is not NaN (PTX 9.7.4.7: min.f16).
template <class Decode, class Encode>
void reduce_16bit(Reduction op, std::span<const uint8_t> source, std::span<uint8_t> destination, Decode decode,
                  Encode encode) {
  const auto apply = [&](auto function) {
    for_each_element<uint16_t>(source, destination,
                               [&](uint16_t a, uint16_t b) { return encode(function(decode(a), decode(b))); });
  };
  switch (op) {
    // A float32 sum of two halves or bfloat16s, rounded again, equals their sum rounded once: 24 bits are
    // at least twice 11 (8) bits and two.
    case Reduction::kAdd:
      return apply([](float a, float b) { return a + b; });
    case Reduction::kMin:
      return apply([](float a, float b) { return std::fmin(a, b); });
    case Reduction::kMax:
      return apply([](float a, float b) { return std::fmax(a, b); });
    default:
      refuse_reduction();
  }
}

}  // namespace

void check_tma_supported(const TensorMapFields& map) {
  require_tma(map.interleave == Interleave::kNone, "interleaved layouts are not supported");
  require_tma(map.type != TensorMapType::k16U6Align16B, "the padded 6-bit element type is not supported");
  require_tma(map.fill == OobFill::kZero, "the NaN of OOB_FILL_NAN is not documented: not supported");
}

uint32_t tma_box_bytes(const TensorMapFields& map) {
  uint64_t bytes = row_bytes(map);
  for (uint32_t d = 1; d < map.rank; ++d) bytes *= box_elements(map, d);
  require_tma(bytes <= kMostBytes, "the box does not fit into shared memory");
  return static_cast<uint32_t>(bytes);
}

namespace {

// Lays down rows of a box, of one part of each: where they lie in the tensor, and in shared memory.
class Rows {
 public:
  Rows(const TensorMapFields& map, TmaDirection direction, std::span<const int32_t> coordinates, uint32_t shared,
       std::vector<TmaPiece>& pieces)
      : map_(map),
        first_(int64_t{coordinates[0]} * element_bits(map.type) / 8),
        piece_bytes_(map.swizzle == Swizzle::k128BAtom32BFlip8B || is_padded(map.type) ? 8 : 16),
        row_start_(shared),
        pieces_(pieces) {
    check_tma_supported(map);
    require_tma(shared % 128 == 0, "the shared-memory address must be a multiple of 128");
    require_tma(first_ % kStartAlignment == 0, "the box must start at a multiple of 16 bytes of its row");
    require_tma(direction == TmaDirection::kLoad || std::all_of(coordinates.begin(), coordinates.end(),
                                                                [](int32_t coordinate) { return coordinate >= 0; }),
                "a store or a reduction starts before the tensor: only a load may");
    require_tma(direction == TmaDirection::kLoad || !is_narrow(map),
                "a box narrower than its swizzle span is known of loads only");
    require_tma(
        direction == TmaDirection::kLoad || !tma_converts(map.type),
        "stores of types that convert on the way (FLOAT32_FTZ, TFLOAT32, TFLOAT32_FTZ) are not supported: use FLOAT32");
    if (is_padded(map.type)) {
      require_tma(direction == TmaDirection::kLoad, "stores of the padded 4-bit type are not supported");
      require_tma(coordinates[0] % int32_t(map.box[0]) == 0,
                  "16U4_ALIGN16B: the first coordinate must be a multiple of 128 (PTX 5.5.3)");
    }
    inner_ = moved_bytes(map, direction, first_, row_bytes(map));
    pieces_.clear();
    pieces_.reserve(tma_box_bytes(map) / piece_bytes_);
  }

  // The row that starts `offset` bytes behind the tensor's first.
  void append(uint64_t offset, bool in_bounds) {
    // Copies: a large product has a hundred million pieces, and the vector could be taken to change what it must
    // reload.
    const uint64_t row = map_.address + static_cast<uint64_t>(first_) + offset;
    const ByteRange valid = in_bounds ? inner_ : ByteRange{0, 0};
    const int64_t bytes = row_bytes(map_), step = piece_bytes_;
    const uint32_t shared = row_start_, pitch = shared_row_bytes(map_) / row_bytes(map_);
    const Swizzle swizzle = map_.swizzle;
    for (int64_t at = 0; at < bytes; at += step) {
      const bool begun = valid.begin <= at;  // the tensor starts with a piece
      const int64_t count = begun ? std::clamp<int64_t>(valid.end - at, 0, step) : 0;
      pieces_.push_back({.global = row + static_cast<uint64_t>(at),
                         .shared = swizzle_address(swizzle, shared + static_cast<uint32_t>(at) * pitch),
                         .bytes = static_cast<uint8_t>(step),
                         .count = static_cast<uint8_t>(count)});
    }
    row_start_ += shared_row_pitch(map_);
  }

 private:
  const TensorMapFields& map_;
  const int64_t first_;  // byte of the row
  const uint32_t piece_bytes_;
  ByteRange inner_{};
  uint32_t row_start_;
  std::vector<TmaPiece>& pieces_;
};

}  // namespace

void tma_pieces(const TensorMapFields& map, TmaDirection direction, std::span<const int32_t> coordinates,
                uint32_t shared, std::vector<TmaPiece>& pieces) {
  if (coordinates.size() != map.rank) {
    throw Error("tma: " + std::to_string(coordinates.size()) + " coordinates for a tensor map of rank " +
                std::to_string(map.rank));
  }
  Rows rows(map, direction, coordinates, shared, pieces);
  std::array<uint32_t, kMaxRank> index = {};  // of the row within the box; index[0] stays 0
  for (;;) {
    uint64_t offset = 0;
    bool in_bounds = true;
    for (uint32_t d = 1; d < map.rank; ++d) {
      const int64_t coordinate = int64_t{coordinates[d]} + int64_t{index[d]} * map.element_strides[d];
      in_bounds &= static_cast<uint64_t>(coordinate) < map.extents[d];  // a negative one becomes huge
      offset += static_cast<uint64_t>(coordinate) * map.strides[d - 1];
    }
    rows.append(offset, in_bounds);
    uint32_t d = 1;
    while (d < map.rank && ++index[d] == box_elements(map, d)) index[d++] = 0;
    if (d >= map.rank) return;
  }
}

void tma_row_pieces(const TensorMapFields& map, TmaDirection direction, std::span<const int32_t> coordinates,
                    uint32_t shared, std::vector<TmaPiece>& pieces) {
  require_tma(map.rank == 2 && map.box[1] == 1,
              "tile::gather4 and tile::scatter4 take a tensor map of rank 2 whose box is one row");
  if (coordinates.size() != kGatheredRows + 1) throw Error("tma: a column and four rows must be given");
  Rows rows(map, direction, coordinates, shared, pieces);
  for (const int32_t row : coordinates.subspan(1))
    rows.append(static_cast<uint64_t>(int64_t{row}) * map.strides[0],
                static_cast<uint64_t>(int64_t{row}) < map.extents[1]);
}

void tma_convert(TensorMapType type, std::span<uint8_t> bytes) {
  if (type != TensorMapType::kTf32 && type != TensorMapType::kTf32Ftz) return;  // FTZ flushes nothing
  constexpr uint32_t kInfinity = 0x7f800000, kNan = 0x7fffe000, kDropped = 0x1fff;
  for (size_t i = 0; i + sizeof(uint32_t) <= bytes.size(); i += sizeof(uint32_t)) {
    auto value = value_at<uint32_t>(&bytes[i]);
    if ((value & ~(1u << 31)) > kInfinity)
      value = kNan;
    else
      value = (value + kDropped / 2 + (value >> 13 & 1)) & ~kDropped;
    std::memcpy(&bytes[i], &value, sizeof value);
  }
}

void tma_reduce(Reduction op, TensorMapType type, std::span<const uint8_t> source, std::span<uint8_t> destination) {
  const uint32_t size = element_bits(type) / 8;
  if (source.size() != destination.size() || size == 0 || source.size() % size != 0) {
    throw Error("tma: a reduction needs whole elements, as many in the source as in the destination");
  }
  switch (type) {
    case TensorMapType::kU32:
      return reduce_integer<uint32_t>(op, source, destination);
    case TensorMapType::kS32:
      return reduce_integer<int32_t>(op, source, destination);
    case TensorMapType::kU64:
      return reduce_integer<uint64_t>(op, source, destination);
    case TensorMapType::kS64:
      return reduce_integer<int64_t>(op, source, destination);
    case TensorMapType::kF16:
      return reduce_16bit(op, source, destination, f16_to_f32, f32_to_f16);
    case TensorMapType::kBf16:
      return reduce_16bit(op, source, destination, bf16_to_f32, f32_to_bf16);
    case TensorMapType::kF32:
      if (op != Reduction::kAdd) refuse_reduction();
      return for_each_element<float>(source, destination, [](float a, float b) { return a + b; });
    case TensorMapType::kF64:
      if (op != Reduction::kAdd) refuse_reduction();
      return for_each_element<double>(source, destination, [](double a, double b) { return a + b; });
    default:
      refuse_reduction();
  }
}

}  // namespace jaxbw::emulator
