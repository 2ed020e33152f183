#include "tmem.h"

#include <algorithm>
#include <bit>
#include <cstring>
#include <string>

#include "error.h"

namespace jaxbw::emulator {
namespace {

struct ShapeFacts {
  uint32_t lanes, registers, columns;  // of one repetition
};
constexpr ShapeFacts kShapes[] = {{32, 1, 1}, {16, 1, 2}, {16, 2, 4}, {16, 4, 8}, {16, 1, 1}};
constexpr uint32_t kMaxAccessRegisters = 128;

ShapeFacts facts(TmemShape shape) { return kShapes[static_cast<uint32_t>(shape)]; }

struct CopyFacts {
  uint32_t rows, chunks;  // of the source; chunks of 16 bytes in a row
};
CopyFacts facts(TmemCopyShape shape) {
  switch (shape) {
    case TmemCopyShape::k128x256b:
      return {128, 2};
    case TmemCopyShape::k4x256b:
      return {4, 2};
    case TmemCopyShape::k128x128b:
      return {128, 1};
    case TmemCopyShape::k64x128bWarpx2_02_13:
    case TmemCopyShape::k64x128bWarpx2_01_23:
      return {64, 1};
    case TmemCopyShape::k32x128bWarpx4:
      return {32, 1};
  }
  throw Error("tcgen05.cp: unknown shape");
}

// Lanes of row 0 of the copies that a row makes, and the lane of row r relative to them.
std::vector<uint32_t> copy_lanes(TmemCopyShape shape) {
  switch (shape) {
    case TmemCopyShape::k64x128bWarpx2_02_13:
      return {0, 64};
    case TmemCopyShape::k64x128bWarpx2_01_23:
      return {0, 32};
    case TmemCopyShape::k32x128bWarpx4:
      return {0, 32, 64, 96};
    default:
      return {0};
  }
}
uint32_t row_lane(TmemCopyShape shape, uint32_t row) {
  if (shape == TmemCopyShape::k4x256b) return row * kWarpLanes;
  if (shape == TmemCopyShape::k64x128bWarpx2_01_23) return row % 32 + row / 32 * 64;
  return row;
}

// The lane of an address for a copy: 4x256b refreshes one lane of each quarter, the others all lanes.
void check_copy_address(TmemCopyShape shape, uint32_t address) {
  const uint32_t limit = shape == TmemCopyShape::k4x256b ? kWarpLanes : 1;
  if (tmem_lane(address) >= limit) {
    throw Error("tcgen05.cp: lane " + std::to_string(tmem_lane(address)) + " of the address must be less than " +
                std::to_string(limit));
  }
}

}  // namespace

void check_tmem_region(const TmemRegion& r, const char* operation) {
  if (r.lane + r.lanes > kTmemLanes || r.column + r.columns > kTmemColumns) {
    throw Error(std::string(operation) + ": lanes [" + std::to_string(r.lane) + ", " +
                std::to_string(r.lane + r.lanes) + ") x columns [" + std::to_string(r.column) + ", " +
                std::to_string(r.column + r.columns) + ") do not lie in tensor memory");
  }
}

uint32_t tmem_register_count(const TmemAccess& access) {
  const uint32_t count = access.repeat * facts(access.shape).registers;
  if (!std::has_single_bit(access.repeat) || access.repeat > kMaxAccessRegisters || count > kMaxAccessRegisters) {
    throw Error("tcgen05.ld/st: .x" + std::to_string(access.repeat) + " does not exist for this shape");
  }
  return count;
}

TmemCell tmem_cell(const TmemAccess& access, uint32_t t, uint32_t r) {
  const uint32_t scale = access.packed ? 2 : 1;
  switch (access.shape) {
    case TmemShape::k32x32b:
      return {t, scale * r};
    case TmemShape::k16x64b:
      return {t / 4 + 8 * (t % 2), scale * (2 * r + t / 2 % 2)};
    case TmemShape::k16x128b:
      return {t / 4 + 8 * (r % 2), scale * (4 * (r / 2) + t % 4)};
    case TmemShape::k16x256b:
      return {t / 4 + 8 * (r / 2 % 2), scale * (8 * (r / 4) + 2 * (t % 4) + r % 2)};
    case TmemShape::k16x32bx2:
      return {t % 16, scale * r + (t < 16 ? 0 : access.half_split)};
  }
  throw Error("tcgen05.ld/st: unknown shape");
}

std::vector<TmemRegion> tmem_access_regions(const TmemAccess& access, uint32_t address, uint32_t warp) {
  tmem_register_count(access);
  const ShapeFacts shape = facts(access.shape);
  const uint32_t lane = tmem_lane(address), first = warp % 4 * kWarpLanes;
  if (lane < first || lane >= first + kWarpLanes || (lane - first) % shape.lanes != 0) {
    throw Error("tcgen05.ld/st: lane " + std::to_string(lane) + " of the address: warp " + std::to_string(warp) +
                " reaches lanes " + std::to_string(first) + " to " + std::to_string(first + kWarpLanes - 1) +
                ", in steps of " + std::to_string(shape.lanes));
  }
  const uint32_t columns = access.repeat * shape.columns * (access.packed ? 2 : 1);
  std::vector<TmemRegion> regions = {{lane, shape.lanes, tmem_column(address), columns}};
  if (access.shape == TmemShape::k16x32bx2) {
    if (access.half_split > kTmemColumns) throw Error("tcgen05.ld/st: immHalfSplitoff is out of range");
    regions.push_back({lane, shape.lanes, tmem_column(address) + access.half_split, columns});
  }
  for (const TmemRegion& region : regions) check_tmem_region(region, "tcgen05.ld/st");
  return regions;
}

void tmem_load(const TensorMemory& memory, const TmemAccess& access, uint32_t address, uint32_t warp,
               std::span<uint32_t> registers) {
  tmem_access_regions(access, address, warp);
  const uint32_t count = tmem_register_count(access);
  if (registers.size() != size_t{count} * kWarpLanes) throw Error("tcgen05.ld: wrong number of registers");
  for (uint32_t r = 0; r < count; ++r) {
    for (uint32_t t = 0; t < kWarpLanes; ++t) {
      const TmemCell cell = tmem_cell(access, t, r);
      const uint32_t* cells = memory.row(tmem_lane(address) + cell.lane) + tmem_column(address) + cell.column;
      registers[r * kWarpLanes + t] = access.packed ? (cells[0] & 0xffff) | cells[1] << 16 : cells[0];
    }
  }
}

void tmem_store(TensorMemory& memory, const TmemAccess& access, uint32_t address, uint32_t warp,
                std::span<const uint32_t> registers) {
  tmem_access_regions(access, address, warp);
  const uint32_t count = tmem_register_count(access);
  if (registers.size() != size_t{count} * kWarpLanes) throw Error("tcgen05.st: wrong number of registers");
  for (uint32_t r = 0; r < count; ++r) {
    for (uint32_t t = 0; t < kWarpLanes; ++t) {
      const TmemCell cell = tmem_cell(access, t, r);
      uint32_t* cells = memory.row(tmem_lane(address) + cell.lane) + tmem_column(address) + cell.column;
      const uint32_t value = registers[r * kWarpLanes + t];
      cells[0] = access.packed ? value & 0xffff : value;
      if (access.packed) cells[1] = value >> 16;
    }
  }
}

std::vector<uint32_t> tmem_copy_chunks(TmemCopyShape shape, const SharedMatrix& source) {
  const CopyFacts size = facts(shape);
  std::vector<uint32_t> addresses;
  for (uint32_t row = 0; row < size.rows; ++row) {
    for (uint32_t chunk = 0; chunk < size.chunks; ++chunk) {
      addresses.push_back(chunk_address(source, OperandMajor::kK, row, chunk));
    }
  }
  return addresses;
}

std::vector<TmemRegion> tmem_copy_regions(TmemCopyShape shape, uint32_t address) {
  check_copy_address(shape, address);
  const uint32_t columns = facts(shape).chunks * 4, column = tmem_column(address);
  std::vector<TmemRegion> regions;
  if (shape == TmemCopyShape::k4x256b) {
    for (uint32_t row = 0; row < 4; ++row) {
      regions.push_back({tmem_lane(address) + row_lane(shape, row), 1, column, columns});
    }
  } else {
    regions.push_back({0, kTmemLanes, column, columns});  // the multicasts too reach every lane
  }
  for (const TmemRegion& region : regions) check_tmem_region(region, "tcgen05.cp");
  return regions;
}

void tmem_copy(TmemCopyShape shape, const SharedView& shared, const SharedMatrix& source, TensorMemory& memory,
               uint32_t address) {
  tmem_copy_regions(shape, address);
  const CopyFacts size = facts(shape);
  const std::vector<uint32_t> chunks = tmem_copy_chunks(shape, source), lanes = copy_lanes(shape);
  for (uint32_t row = 0; row < size.rows; ++row) {
    for (uint32_t chunk = 0; chunk < size.chunks; ++chunk) {
      const uint8_t* bytes = shared.at(chunks[row * size.chunks + chunk], kChunkBytes);
      for (const uint32_t lane : lanes) {
        const uint32_t target = tmem_lane(address) + lane + row_lane(shape, row);
        std::memcpy(memory.row(target) + tmem_column(address) + 4 * chunk, bytes, kChunkBytes);
      }
    }
  }
}

void TmemAllocator::check(uint32_t columns) const {
  if (relinquished_) throw Error("tcgen05.alloc after tcgen05.relinquish_alloc_permit");
  if (!std::has_single_bit(columns) || columns < kUnit || columns > kTmemColumns) {
    throw Error("tcgen05.alloc: " + std::to_string(columns) + " columns; must be a power of two from 32 to 512");
  }
  if (columns > smallest_) {
    throw Error("tcgen05.alloc: " + std::to_string(columns) + " columns after an allocation of " +
                std::to_string(smallest_) + ": sizes must not increase within a CTA");
  }
}

bool TmemAllocator::is_free(uint32_t unit, uint32_t units) const {
  return std::none_of(&in_use_[unit], &in_use_[unit] + units, [](bool used) { return used; });
}

std::optional<uint32_t> TmemAllocator::allocate_in_each(std::initializer_list<TmemAllocator*> group, uint32_t columns) {
  for (const TmemAllocator* cta : group) cta->check(columns);
  const uint32_t units = columns / kUnit;
  for (uint32_t unit = 0; unit < kTmemColumns / kUnit; unit += units) {
    if (!std::all_of(group.begin(), group.end(), [&](const auto* cta) { return cta->is_free(unit, units); })) continue;
    for (TmemAllocator* cta : group) {
      std::fill_n(&cta->in_use_[unit], units, true);
      cta->size_[unit] = static_cast<uint16_t>(columns);
      cta->smallest_ = columns;
    }
    return unit * kUnit;
  }
  return std::nullopt;
}

void TmemAllocator::deallocate(uint32_t address, uint32_t columns) {
  if (address >= kTmemColumns || address % kUnit != 0 || columns == 0 || size_[address / kUnit] != columns) {
    throw Error("tcgen05.dealloc: no allocation of " + std::to_string(columns) + " columns at tensor memory address " +
                std::to_string(address));
  }
  size_[address / kUnit] = 0;
  std::fill_n(&in_use_[address / kUnit], columns / kUnit, false);
}

uint32_t TmemAllocator::columns_in_use() const {
  return kUnit * static_cast<uint32_t>(std::count(in_use_.begin(), in_use_.end(), true));
}

bool TmemAllocator::is_allocated(uint32_t column, uint32_t columns) const {
  if (column + columns > kTmemColumns) return false;
  for (uint32_t unit = column / kUnit; unit * kUnit < column + columns; ++unit) {
    if (!in_use_[unit]) return false;
  }
  return true;
}

}  // namespace jaxbw::emulator
