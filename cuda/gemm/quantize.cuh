// An array as 8-bit floating point with scales: QuantizeParams in params.h says what, quantize.h how the work is
// divided. Bound by memory: x is read once where a block holds all that shares a scale, else twice, and both times from
// L2 if it fits.
#pragma once

#include "gemm/finite_maximum.h"
#include "gemm/quantize.h"
#include "gemm/quantize_elements.cuh"
#include "ptx/float8.h"
#include "ptx/fragments.h"
#include "ptx/programmatic_launch.h"
#include "ptx/thread.h"

namespace jaxbw {

constexpr uint32_t kQuantizeWarps = kQuantizeThreads / ptx::kWarpSize;

// The largest of what `lanes` neighbouring threads have: lanes of a warp, or with more than 32 whole warps. All threads
// of the block call it.
JAXBW_DEVICE uint32_t shared_maximum(uint32_t value, uint32_t lanes) {
  __shared__ uint32_t of_warp[kQuantizeWarps];
#pragma unroll 1
  for (uint32_t distance = min(lanes, ptx::kWarpSize) / 2; distance != 0; distance /= 2) {
    value = max(value, __shfl_xor_sync(ptx::kFullWarp, value, distance));
  }
  if (lanes <= ptx::kWarpSize) return value;
  const uint32_t warp = threadIdx.x / ptx::kWarpSize, warps = lanes / ptx::kWarpSize;
  __syncthreads();  // whoever called before has read
  if (ptx::lane_index() == 0) of_warp[warp] = value;
  __syncthreads();
#pragma unroll 1
  for (uint32_t i = 0, first = warp / warps * warps; i < warps; ++i) value = max(value, of_warp[first + i]);
  return value;
}

struct Scale {
  float scale, inverse;
};

template <DataType kFormat>
JAXBW_DEVICE Scale scale_of(uint32_t amax) {
  constexpr float kLargest = kFormat == DataType::kE4M3 ? 448.0f : 57344.0f, kLeastNormal = 0x1p-126f;
  const float scale = amax == 0 ? 1.0f : fmaxf(__fdiv_rn(__uint_as_float(amax), kLargest), kLeastNormal);
  return {scale, __frcp_rn(scale)};
}

// Four elements as four bytes.
template <DataType kType, DataType kFormat>
JAXBW_DEVICE uint32_t quantized_quad(const uint32_t* words, float inverse) {
  float scaled[4];
#pragma unroll
  for (uint32_t i = 0; i < 4; ++i) scaled[i] = ptx::multiply_flushed(element<kType>(words, i), inverse);
  return ptx::pack_float8<kFormat>(scaled[0], scaled[1]) | uint32_t{ptx::pack_float8<kFormat>(scaled[2], scaled[3])}
                                                               << 16;
}

// One as a byte.
template <DataType kType, DataType kFormat>
JAXBW_DEVICE uint8_t quantized(uint32_t bits, float inverse) {
  return static_cast<uint8_t>(
      ptx::pack_float8<kFormat>(ptx::multiply_flushed(element<kType>(&bits, 0), inverse), 0.0f));
}

// What one of `lanes` threads has of neighbouring elements: of the whole vectors every lanes-th, and one of the
// elements before and behind them, the edge, if there is one left for it.
template <DataType kType>
class Share {
 public:
  JAXBW_DEVICE Share(const QuantizeParams& p, uint64_t begin, uint64_t end, uint32_t lane, uint32_t lanes)
      : x_(p.x), data_(p.data), lane_(lane), lanes_(lanes) {
    const uint64_t last = end / kElements;
    first_ = (begin + kElements - 1) / kElements;
    vectors_ = last > first_ ? static_cast<uint32_t>(last - first_) : 0;
    const uint64_t head_end = min(first_ * kElements, end), tail = max(last * kElements, head_end);
    const bool of_head = lane < kElements;
    edge_ = of_head ? begin + lane : tail + lane - kElements;
    has_edge_ = edge_ < (of_head ? head_end : end);
  }

  JAXBW_DEVICE uint32_t chunks() const { return (vectors_ + kInFlight * lanes_ - 1) / (kInFlight * lanes_); }

  // `kAgain`: they will be read once more.
  template <bool kAgain = false>
  JAXBW_DEVICE void load(uint32_t chunk) {
#pragma unroll
    for (uint32_t i = 0; i < kInFlight; ++i) {
      const uint32_t vector = index(chunk, i);
      uint4 v = {0, 0, 0, 0};
      if (vector < vectors_) {
        const uint4* address = static_cast<const uint4*>(x_) + first_ + vector;
        v = kAgain ? *address : __ldcs(address);
      }
      words_[i][0] = v.x, words_[i][1] = v.y, words_[i][2] = v.z, words_[i][3] = v.w;
    }
  }
  JAXBW_DEVICE void load_edge() { edge_bits_ = has_edge_ ? load_element<kType>(x_, edge_) : 0; }

  JAXBW_DEVICE void show(FiniteMaximum<kType>& maximum) const {
#pragma unroll
    for (uint32_t i = 0; i < kInFlight; ++i) {
#pragma unroll
      for (uint32_t word = 0; word < 4; ++word) maximum.see(words_[i][word]);
    }
  }
  JAXBW_DEVICE void show_edge(FiniteMaximum<kType>& maximum) const { maximum.see(edge_bits_); }

  template <DataType kFormat>
  JAXBW_DEVICE void store(uint32_t chunk, float inverse) const {
#pragma unroll
    for (uint32_t i = 0; i < kInFlight; ++i) {
      const uint32_t vector = index(chunk, i);
      if (vector >= vectors_) continue;
      if constexpr (kType == DataType::kF32) {
        static_cast<uint32_t*>(data_)[first_ + vector] = quantized_quad<kType, kFormat>(words_[i], inverse);
      } else {
        static_cast<uint2*>(data_)[first_ + vector] = {quantized_quad<kType, kFormat>(words_[i], inverse),
                                                       quantized_quad<kType, kFormat>(words_[i] + 2, inverse)};
      }
    }
  }
  template <DataType kFormat>
  JAXBW_DEVICE void store_edge(float inverse) const {
    if (has_edge_) static_cast<uint8_t*>(data_)[edge_] = quantized<kType, kFormat>(edge_bits_, inverse);
  }

 private:
  static constexpr uint32_t kElements = quantize_vector(kType), kInFlight = kQuantizeInFlight;

  JAXBW_DEVICE uint32_t index(uint32_t chunk, uint32_t i) const { return (chunk * kInFlight + i) * lanes_ + lane_; }

  const void* x_;
  void* data_;
  uint32_t lane_, lanes_;
  uint64_t first_;  // whole vector of the array
  uint32_t vectors_;
  uint64_t edge_;
  bool has_edge_;
  uint32_t words_[kInFlight][4], edge_bits_;
};

template <DataType kType, DataType kFormat>
JAXBW_DEVICE void quantize_groups(const QuantizeParams& p) {
  const uint32_t lane = threadIdx.x % p.lanes, of_block = kQuantizeThreads / p.lanes;
#pragma unroll 1
  for (uint64_t first = uint64_t{blockIdx.x} * of_block; first < p.groups; first += uint64_t{gridDim.x} * of_block) {
    const uint64_t group = first + threadIdx.x / p.lanes;
    const bool present = group < p.groups;
    Share<kType> share(p, group * p.group, present ? (group + 1) * p.group : group * p.group, lane, p.lanes);
    share.load(0);
    share.load_edge();
    FiniteMaximum<kType> maximum;
    share.show(maximum);
    share.show_edge(maximum);
    const Scale scale = scale_of<kFormat>(shared_maximum(maximum.bits(), p.lanes));
    if (present && lane == 0) p.scale[group] = scale.scale;
    share.template store<kFormat>(0, scale.inverse);
    share.template store_edge<kFormat>(scale.inverse);
  }
}

// What a thread of the block has of a slice.
template <DataType kType>
JAXBW_DEVICE Share<kType> share_of_slice(const QuantizeParams& p, uint32_t group, uint32_t slice) {
  const uint64_t begin = slice * p.slice, end = min(begin + p.slice, p.group);
  return Share<kType>(p, group * p.group + begin, group * p.group + end, threadIdx.x, kQuantizeThreads);
}

template <DataType kType>
JAXBW_DEVICE void find_maxima(const QuantizeParams& p) {
  const uint32_t count = p.groups * p.slices;
#pragma unroll 1
  for (uint64_t index = blockIdx.x; index < count; index += gridDim.x) {
    const auto number = static_cast<uint32_t>(index);
    Share<kType> share = share_of_slice<kType>(p, number / p.slices, number % p.slices);
    FiniteMaximum<kType> maximum;
    share.load_edge();
    share.show_edge(maximum);
#pragma unroll 1
    for (uint32_t chunk = 0; chunk < share.chunks(); ++chunk) {
      share.template load</*kAgain=*/true>(chunk);
      share.show(maximum);
    }
    const uint32_t largest = shared_maximum(maximum.bits(), kQuantizeThreads);
    if (threadIdx.x == 0) p.maxima[number] = largest;
  }
}

// The scale of the group that the block is at.
template <DataType kFormat>
class GroupScale {
 public:
  JAXBW_DEVICE explicit GroupScale(const QuantizeParams& p) : p_(p) {}

  // All threads of the block call it. `writes`: one block for each group.
  JAXBW_DEVICE float inverse(uint32_t group, bool writes) {
    if (group != group_) {
      uint32_t largest = 0;
#pragma unroll 4
      for (uint32_t slice = threadIdx.x; slice < p_.slices; slice += kQuantizeThreads) {
        largest = max(largest, p_.maxima[uint64_t{group} * p_.slices + slice]);
      }
      scale_ = scale_of<kFormat>(shared_maximum(largest, kQuantizeThreads));
      group_ = group;
    }
    if (writes && threadIdx.x == 0) p_.scale[group] = scale_.scale;
    return scale_.inverse;
  }

 private:
  const QuantizeParams& p_;
  uint32_t group_ = UINT32_MAX;
  Scale scale_;
};

// Backwards: what was read last is still in L2.
template <DataType kType, DataType kFormat>
JAXBW_DEVICE void quantize_slices(const QuantizeParams& p) {
  const uint32_t count = p.groups * p.slices;
  GroupScale<kFormat> scale(p);
#pragma unroll 1
  for (uint64_t done = blockIdx.x; done < count; done += gridDim.x) {
    const uint32_t number = count - 1 - static_cast<uint32_t>(done);
    const uint32_t group = number / p.slices, slice = number % p.slices;
    const float inverse = scale.inverse(group, slice == 0);
    Share<kType> share = share_of_slice<kType>(p, group, slice);
#pragma unroll 1
    for (uint32_t chunk = share.chunks(); chunk-- > 0;) {
      share.load(chunk);
      share.template store<kFormat>(chunk, inverse);
    }
    share.load_edge();
    share.template store_edge<kFormat>(inverse);
  }
}

// Bytes 0..3 of the result are byte `index` of each word.
JAXBW_DEVICE uint32_t gathered_byte(const uint32_t (&words)[4], uint32_t index) {
  const uint32_t select = index | (4 + index) << 4;
  return __byte_perm(__byte_perm(words[0], words[1], select), __byte_perm(words[2], words[3], select), 0x5410);
}

// A tile of a matrix, whose columns cross over in shared memory as words of four rows. Word y of column 4x + k lies at
// y ^ x of its column, so that the threads of a warp meet 32 banks where x or y is their lane. Rows and columns are
// multiples of four.
class TurnedTile {
 public:
  static constexpr uint32_t kWords = kQuantizeTile / 4;  // of a row or a column
  static_assert(kWords == ptx::kWarpSize && kWords % kQuantizeWarps == 0);

  // Of the matrix with this number; i and j are the tile's first row and column.
  JAXBW_DEVICE TurnedTile(const QuantizeParams& p, uint64_t matrix, uint32_t i, uint32_t j)
      : p_(p), matrix_(matrix * p.rows * p.columns), i_(i), j_(j) {}

  // Writes data. A thread turns blocks of four by four in its registers.
  template <DataType kType, DataType kFormat>
  JAXBW_DEVICE void quantize(float inverse) const {
    const uint32_t x = ptx::lane_index(), column = j_ + 4 * x;
#pragma unroll 2
    for (uint32_t y = threadIdx.x / ptx::kWarpSize; y < kWords; y += kQuantizeWarps) {
      uint32_t quads[4][size_bytes(kType)] = {}, rows[4];
      const uint64_t first = matrix_ + uint64_t{i_ + 4 * y} * p_.columns + column;
      const bool inside = column < p_.columns && i_ + 4 * y < p_.rows;
#pragma unroll
      for (uint32_t k = 0; k < 4; ++k) {
        if (!inside) continue;
        const uint64_t quad = first / 4 + uint64_t{k} * (p_.columns / 4);
        if constexpr (kType == DataType::kF32) {
          const uint4 v = __ldcs(static_cast<const uint4*>(p_.x) + quad);
          quads[k][0] = v.x, quads[k][1] = v.y, quads[k][2] = v.z, quads[k][3] = v.w;
        } else {
          const uint2 v = __ldcs(static_cast<const uint2*>(p_.x) + quad);
          quads[k][0] = v.x, quads[k][1] = v.y;
        }
      }
#pragma unroll
      for (uint32_t k = 0; k < 4; ++k) {
        rows[k] = quantized_quad<kType, kFormat>(quads[k], inverse);
        if (inside) static_cast<uint32_t*>(p_.data)[first / 4 + uint64_t{k} * (p_.columns / 4)] = rows[k];
      }
#pragma unroll
      for (uint32_t k = 0; k < 4; ++k) *word(4 * x + k, y) = gathered_byte(rows, k);
    }
  }

  // Writes the transposed data.
  JAXBW_DEVICE void transpose() const {
    const uint32_t y = ptx::lane_index(), row = i_ + 4 * y;
    if (row >= p_.rows) return;
#pragma unroll 4
    for (uint32_t column = threadIdx.x / ptx::kWarpSize; column < kQuantizeTile; column += kQuantizeWarps) {
      if (j_ + column >= p_.columns) break;
      const uint32_t bytes = *word(column, y);
      static_cast<uint32_t*>(p_.transposed)[(matrix_ + uint64_t{j_ + column} * p_.rows + row) / 4] = bytes;
    }
  }

 private:
  JAXBW_DEVICE static uint32_t* word(uint32_t column, uint32_t y) {
    __shared__ uint32_t words[kQuantizeTile * kWords];
    return &words[column * kWords + (y ^ column / 4)];
  }

  const QuantizeParams& p_;
  uint64_t matrix_;  // its first element
  uint32_t i_, j_;
};

template <DataType kType, DataType kFormat>
JAXBW_DEVICE void quantize_tiles(const QuantizeParams& p) {
  const auto down = static_cast<uint32_t>(quantize_tiles(p.rows)),
             along = static_cast<uint32_t>(quantize_tiles(p.columns));
  const uint32_t of_group = p.matrices * down * along, count = p.groups * of_group;
  GroupScale<kFormat> scale(p);
#pragma unroll 1
  for (uint64_t done = blockIdx.x; done < count; done += gridDim.x) {
    const uint32_t number = count - 1 - static_cast<uint32_t>(done);  // backwards, as quantize_slices
    const float inverse = scale.inverse(number / of_group, number % of_group == 0);
    const TurnedTile tile(p, number / (down * along), number / along % down * kQuantizeTile,
                          number % along * kQuantizeTile);
    tile.template quantize<kType, kFormat>(inverse);
    __syncthreads();
    tile.transpose();
    __syncthreads();
  }
}

template <DataType kType, DataType kFormat>
JAXBW_DEVICE void quantize_as(const QuantizeParams& p) {
  switch (p.pass) {
    case QuantizePass::kGroups:
      return quantize_groups<kType, kFormat>(p);
    case QuantizePass::kAmax:
      break;
    case QuantizePass::kData:
      return quantize_slices<kType, kFormat>(p);
    case QuantizePass::kBoth:
      return quantize_tiles<kType, kFormat>(p);
  }
}

template <DataType kType>
JAXBW_DEVICE void quantize(const QuantizeParams& p) {
  ptx::wait_for_upstream();
  ptx::launch_dependents();  // they wait for what is written here
  if (p.pass == QuantizePass::kAmax) return find_maxima<kType>(p);
  if (p.format == DataType::kE4M3) return quantize_as<kType, DataType::kE4M3>(p);
  quantize_as<kType, DataType::kE5M2>(p);
}

}  // namespace jaxbw
