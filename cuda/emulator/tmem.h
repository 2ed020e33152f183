// Tensor memory (PTX 9.7.16.1): its cells, its allocation, and the data movement of tcgen05.ld, .st and .cp.
//
// 128 lanes x 512 columns of 32 bits for each CTA; an address is lane << 16 | column.
#pragma once

#include <array>
#include <cstdint>
#include <initializer_list>
#include <optional>
#include <span>
#include <vector>

#include "smem_matrix.h"

namespace jaxbw::emulator {

inline constexpr uint32_t kTmemLanes = 128;
inline constexpr uint32_t kTmemColumns = 512;
inline constexpr uint32_t kWarpLanes = 32;  // lanes that one warp of a warpgroup reaches (PTX 9.7.16.8.1)

struct TensorMemory {
  std::vector<uint32_t> cells = std::vector<uint32_t>(kTmemLanes * kTmemColumns);  // lane-major

  uint32_t* row(uint32_t lane) { return &cells[lane * kTmemColumns]; }
  const uint32_t* row(uint32_t lane) const { return &cells[lane * kTmemColumns]; }
};

constexpr uint32_t tmem_lane(uint32_t address) { return address >> 16; }
constexpr uint32_t tmem_column(uint32_t address) { return address & 0xffff; }

// A rectangle of cells: what an operation reads or writes, for whoever checks races and allocation.
struct TmemRegion {
  uint32_t lane, lanes, column, columns;

  bool operator==(const TmemRegion&) const = default;
};

// Throws Error unless the rectangle lies in tensor memory.
void check_tmem_region(const TmemRegion& region, const char* operation);

// --- tcgen05.ld and tcgen05.st (PTX 9.7.16.2.3.1, 9.7.16.8) ---
//
// Thread t, register r <-> lane and column, relative to the address (the fragments of the figures, in the
// form in which CUTLASS and Triton state them, and agree); one step of .num adds to r and the column as shown:
//
//   .32x32b    lane t                        column r                                 +1, +1
//   .16x64b    lane t/4 + 8*(t%2)            column t/2%2                             +1, +2
//   .16x128b   lane t/4 + 8*(r%2)            column t%4                               +2, +4
//   .16x256b   lane t/4 + 8*(r/2%2)          column 2*(t%4) + r%2                     +4, +8
//   .16x32bx2  lane t%16                     column r + (t < 16 ? 0 : half_split)     +1, +1
//
// With .pack::16b / .unpack::16b a register holds the low halves of two adjacent cells, the lower column in
// its low half; the columns above (not half_split, which counts cells) then double. A store clears the upper
// half of the cells it unpacks into: PTX does not say what becomes of it.
enum class TmemShape : uint8_t { k32x32b, k16x64b, k16x128b, k16x256b, k16x32bx2 };

struct TmemAccess {
  TmemShape shape;
  uint32_t repeat;          // .x1 to .x128
  bool packed = false;      // .pack::16b, .unpack::16b
  uint32_t half_split = 0;  // immHalfSplitoff of .16x32bx2
};

// Registers of each thread (PTX tables 49 and 50). Throws Error for a repeat that the shape does not have.
uint32_t tmem_register_count(const TmemAccess& access);

struct TmemCell {
  uint32_t lane, column;  // relative to the address; the lower of the two columns if packed
};
TmemCell tmem_cell(const TmemAccess& access, uint32_t thread, uint32_t reg);

// The cells that a warp accesses, one or (16x32bx2) two rectangles. `warp` is the warp's rank in the CTA:
// only lanes 32*(warp % 4) .. +31 are in its reach, and the lane of the address must be the first of them or
// (16-lane shapes) the 17th. Throws Error otherwise, or past the last column.
std::vector<TmemRegion> tmem_access_regions(const TmemAccess& access, uint32_t address, uint32_t warp);

// The movement itself: registers[reg * 32 + thread].
void tmem_load(const TensorMemory& memory, const TmemAccess& access, uint32_t address, uint32_t warp,
               std::span<uint32_t> registers);
void tmem_store(TensorMemory& memory, const TmemAccess& access, uint32_t address, uint32_t warp,
                std::span<const uint32_t> registers);

// --- tcgen05.cp (PTX 9.7.16.9.2), without decompression ---
//
// Row r of the source, a K-major matrix of 128 or 256 bits a row, goes to these lanes:
//
//   .128x256b, .128x128b   r
//   .4x256b                32*r: the address's lane in each quarter. CUTLASS's traits; nothing independent.
//   .64x128b.warpx2::02_13 r, r + 64
//   .64x128b.warpx2::01_23 r%32 + 64*(r/32), and 32 further
//   .32x128b.warpx4        r, r + 32, r + 64, r + 96
//
// With .cta_group::2 each CTA copies from its own shared memory into its own tensor memory.
enum class TmemCopyShape : uint8_t {
  k128x256b,
  k4x256b,
  k128x128b,
  k64x128bWarpx2_02_13,
  k64x128bWarpx2_01_23,
  k32x128bWarpx4
};

// Shared addresses of the 16-byte chunks that the copy reads, row by row.
std::vector<uint32_t> tmem_copy_chunks(TmemCopyShape shape, const SharedMatrix& source);
// The cells that it writes.
std::vector<TmemRegion> tmem_copy_regions(TmemCopyShape shape, uint32_t address);
void tmem_copy(TmemCopyShape shape, const SharedView& shared, const SharedMatrix& source, TensorMemory& memory,
               uint32_t address);

// --- Allocation (PTX 9.7.16.7) ---
//
// The columns of one CTA. Which free columns an allocation gets is the hardware's choice; here the lowest
// that are aligned to its size.
class TmemAllocator {
 public:
  // The address of `columns` free columns (lane 0), or nothing while there are none: tcgen05.alloc then
  // blocks. Throws Error for a size that is not a power of two in [32, 512], for one larger than an earlier
  // allocation of the CTA, and after relinquish().
  std::optional<uint32_t> allocate(uint32_t columns) { return allocate_in_each({this}, columns); }

  // The same columns of each CTA of a group.
  static std::optional<uint32_t> allocate_in_each(std::initializer_list<TmemAllocator*> group, uint32_t columns);

  // Throws Error unless `address` and `columns` are those of an allocation.
  void deallocate(uint32_t address, uint32_t columns);

  void relinquish() { relinquished_ = true; }

  uint32_t columns_in_use() const;
  // Whether all columns [column, column + columns) are allocated.
  bool is_allocated(uint32_t column, uint32_t columns) const;

 private:
  static constexpr uint32_t kUnit = 32;
  std::array<uint16_t, kTmemColumns / kUnit> size_ = {};  // of the allocation that starts at a unit, or 0
  std::array<bool, kTmemColumns / kUnit> in_use_ = {};
  uint32_t smallest_ = kTmemColumns;
  bool relinquished_ = false;

  void check(uint32_t columns) const;
  bool is_free(uint32_t unit, uint32_t units) const;
};

}  // namespace jaxbw::emulator
