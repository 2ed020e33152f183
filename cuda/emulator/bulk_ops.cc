// Bulk asynchronous copies: cp.async.bulk with and without tensor maps, their reductions, and bulk groups
// (PTX 9.7.9.25). What is copied where is tma.h's; here is when, and what it signals.
//
// A load poisons its destination when it is issued, and reads global memory as late as the schedule likes. A store
// first reads all of shared memory (which .read waits for), then writes.
//
// Longer than other files: loads, stores and copies share their operands' forms and the pieces that they move.
#include <algorithm>
#include <array>
#include <bit>
#include <cstring>
#include <utility>

#include "decoder.h"
#include "lanes.h"
#include "operands.h"
#include "tma.h"

namespace jaxbw::emulator {
namespace {

constexpr uint32_t kPieceBytes = 16;
constexpr size_t kPiecesAhead = 64;  // 1 KB

// Nearly all pieces are whole, and a copy of constant size is two instructions.
void copy_piece(uint8_t* to, const uint8_t* from, uint32_t bytes) {
  bytes == kPieceBytes ? std::memcpy(to, from, kPieceBytes) : std::memcpy(to, from, bytes);
}

void fill_piece(uint8_t* to, uint8_t value, uint32_t bytes) {
  bytes == kPieceBytes ? std::memset(to, value, kPieceBytes) : std::memset(to, value, bytes);
}

// Of Instruction::detail.
struct Flags {
  static constexpr uint64_t kTensor = 1, kMulticast = 2, kPair = 4;
  static constexpr uint64_t kRows = 8;  // tile::gather4, tile::scatter4
};

// A box or a run of bytes, cut into pieces. `shared` addresses are CTA-relative: base + offset, no rank.
struct Transfer {
  std::vector<TmaPiece> pieces;
  uint32_t bytes = 0;  // that a barrier counts
  TensorMapType type = TensorMapType::kU8;

  uint32_t shared_bytes() const { return is_padded(type) ? 2 * bytes : bytes; }
};

Transfer linear_transfer(uint64_t global, uint32_t shared, uint32_t bytes) {
  Transfer transfer;
  transfer.bytes = bytes;
  for (uint32_t at = 0; at < bytes; at += kPieceBytes)
    transfer.pieces.push_back(
        {.global = global + at, .shared = shared + at, .bytes = kPieceBytes, .count = kPieceBytes});
  return transfer;
}

// [map, {coordinates}]: the rows of in.list from `first` on are the coordinates.
Transfer tensor_transfer(Step& s, const Instruction& in, TmaDirection direction, uint64_t map_address, uint32_t shared,
                         uint32_t lane) {
  std::array<uint8_t, kTensorMapBytes> bytes;
  const Location low = s.machine.locate(s, Space::kGeneric, map_address, 64, lane, false);
  const Location high = s.machine.locate(s, Space::kGeneric, map_address + 64, 64, lane, false);
  std::memcpy(bytes.data(), low.bytes, 64);
  std::memcpy(bytes.data() + 64, high.bytes, 64);
  const TensorMapFields map = decode_tensor_map(bytes);
  check_tma_supported(map);
  const bool rows = in.detail & Flags::kRows;
  const auto count = uint32_t(in.list.size());
  if (!rows && map.rank != count)
    throw Error("the instruction is " + std::to_string(count) + "d, its tensor map " + std::to_string(map.rank) + "d");
  int32_t values[kMaxRank];
  for (uint32_t i = 0; i < count; ++i) {
    check_use(s, in.list[i], "a TMA coordinate");
    values[i] = int32_t(row32(s, in.list[i])[lane]);
  }
  const std::span<const int32_t> coordinates(values, count);
  Transfer transfer;
  transfer.type = map.type;
  transfer.bytes = tma_box_bytes(map) * (rows ? kGatheredRows : 1);
  (rows ? tma_row_pieces : tma_pieces)(map, direction, coordinates, shared, transfer.pieces);
  return transfer;
}

// Global memory (or the shared memory of the issuing CTA) to shared memory, counted on an mbarrier.
class Load final : public Operation {
 public:
  struct Destination {
    Cta* cta;
    Cta* barrier_cta;
    uint32_t barrier_offset;
  };

  Load(Step& s, Transfer transfer, std::vector<Destination> destinations)
      : Operation(s.line, s.cta), transfer_(std::move(transfer)), destinations_(std::move(destinations)) {
    const bool poison = s.machine.checking();
    if (RaceDetector* races = s.cta.cluster->races.get()) agent_ = races->begin_operation(actor_of(s));
    for (const Destination& to : destinations_) {
      ++to.cta->operations;
      ++to.barrier_cta->operations;
      for (const TmaPiece& piece : transfer_.pieces) {
        const uint32_t offset = piece.shared - kSharedBase;
        if (poison) {
          fill_piece(to.cta->shared.data() + offset, 0xff, piece.bytes);
          fill_piece(to.cta->undefined.data() + offset, 1, piece.bytes);
        }
      }
    }
    bytes = transfer_.bytes;
    shape = {transfer_.bytes, uint32_t(destinations_.size())};
    s.machine.report().bytes["tma load"] += bytes * destinations_.size();
    uint64_t inside = 0;  // of the tensor: what lies outside is not read
    for (const TmaPiece& piece : transfer_.pieces) inside += piece.count;
    s.machine.report().bytes["global load"] += inside;
    ++s.machine.report().operations["tma load"];
  }

  bool step(Machine& machine) override {
    const Destination& to = destinations_[destination_];
    const size_t begin = piece_, end = begin + machine.part(uint32_t(transfer_.pieces.size() - begin));
    uint32_t bytes = 0;
    for (; piece_ < end; ++piece_) {
      // A box reads short runs of far-apart rows, which the host's processor does not foresee.
      if (piece_ + kPiecesAhead < end)
        __builtin_prefetch(reinterpret_cast<const void*>(transfer_.pieces[piece_ + kPiecesAhead].global));
      bytes += copy(machine, transfer_.pieces[piece_], *to.cta);
    }
    if (tma_converts(transfer_.type)) convert(*to.cta, begin, end);
    MBarrier& barrier = machine.mbarrier_of(*to.barrier_cta, to.barrier_offset, *this);
    RaceDetector* races = issuer->cluster->races.get();
    if (races) races->end_operation(agent_, barrier.clocks);
    machine.advance(barrier, barrier.complete(bytes));
    if (piece_ < transfer_.pieces.size()) return false;
    --to.cta->operations;
    --to.barrier_cta->operations;
    piece_ = 0;
    if (++destination_ < destinations_.size()) return false;
    if (races) races->retire(agent_);
    return true;
  }

 private:
  uint32_t copy(Machine& machine, const TmaPiece& piece, Cta& cta) {
    const uint32_t offset = piece.shared - kSharedBase;
    uint8_t* to = cta.shared.data() + offset;
    if (machine.checking()) touch(machine, piece, cta);
    if (piece.count < piece.bytes) std::memset(to, 0, piece.bytes);  // what lies outside the tensor
    if (machine.checking()) fill_piece(cta.undefined.data() + offset, 0, piece.bytes);
    if (piece.count) copy_piece(to, machine.global_bytes(piece.global, piece.count, false), piece.count);
    return piece.bytes;
  }

  void convert(Cta& cta, size_t begin, size_t end) {
    for (size_t i = begin; i < end; ++i) {
      const TmaPiece& piece = transfer_.pieces[i];
      tma_convert(transfer_.type, {cta.shared.data() + piece.shared - kSharedBase, piece.count});
    }
  }

  void touch(Machine& machine, const TmaPiece& piece, Cta& cta) {
    machine.touch_shared(*this, agent_, cta, piece.shared - kSharedBase, piece.bytes, true);
    if (piece.count && destination_ == 0) machine.touch_global(*this, agent_, piece.global, piece.count, {});
  }

  Transfer transfer_;
  std::vector<Destination> destinations_;
  size_t destination_ = 0, piece_ = 0;
  AgentId agent_ = kNoAgent;
};

// Shared memory to global memory, or a reduction into it; part of a bulk group of each thread that it stands for.
class Store final : public Operation {
 public:
  Store(Step& s, Transfer transfer, std::vector<std::shared_ptr<BulkGroup>> groups, const void* key, int reduction)
      : Operation(s.line, s.cta),
        transfer_(std::move(transfer)),
        groups_(std::move(groups)),
        key_(key),
        reduction_(reduction) {
    std::shared_ptr<BulkGroup::Agent> agent;
    if (RaceDetector* races = s.cta.cluster->races.get()) {
      agent_ = races->begin_operation(actor_of(s));
      const auto threads = uint32_t(groups_.size());
      agent = std::make_shared<BulkGroup::Agent>(agent_, races->time(agent_), threads, threads);
    }
    for (const auto& group : groups_) {
      ++group->reading;
      ++group->writing;
      if (agent) group->agents.push_back(agent);
    }
    data_.resize(transfer_.pieces.size() * kPieceBytes);
    s.machine.report().bytes["tma store"] += bytes = transfer_.bytes;
    ++s.machine.report().operations["tma store"];
    for (const TmaPiece& piece : transfer_.pieces) s.machine.report().bytes["global store"] += piece.count;
  }

  bool step(Machine& machine) override {
    const std::vector<TmaPiece>& pieces = transfer_.pieces;
    const bool reads = read_ < pieces.size();
    size_t& at = reads ? read_ : written_;
    const size_t end = at + machine.part(uint32_t(pieces.size() - at));
    for (; at < end; ++at) reads ? read(machine, at) : write(machine, at);
    if (at < pieces.size()) return false;
    if (reads) {
      for (const auto& group : groups_) --group->reading;
      if (RaceDetector* races = issuer->cluster->races.get()) races->tick(agent_);
      machine.wake(key_);
      return false;
    }
    for (const auto& group : groups_) --group->writing;
    machine.wake(key_);
    return true;
  }

 private:
  void read(Machine& machine, size_t index) {
    const TmaPiece& piece = transfer_.pieces[index];
    const uint32_t offset = piece.shared - kSharedBase;
    if (piece.count) machine.touch_shared(*this, agent_, *issuer, offset, piece.count, false);
    copy_piece(&data_[index * kPieceBytes], issuer->shared.data() + offset, piece.count);
    const uint8_t* flags = issuer->undefined.data() + offset;
    if (machine.checking() && std::any_of(flags, flags + piece.count, [](uint8_t flag) { return flag != 0; }))
      machine.finding("poison", *this,
                      "a bulk store reads shared memory that was never written, at offset " + std::to_string(offset));
  }

  void write(Machine& machine, size_t index) {
    const TmaPiece& piece = transfer_.pieces[index];
    if (piece.count == 0) return;
    uint8_t* to = machine.global_bytes(piece.global, piece.count, true);
    const uint8_t* from = &data_[index * kPieceBytes];
    if (machine.checking()) {
      const bool reduces = reduction_ >= 0, repeats = !reduces && std::memcmp(to, from, piece.count) == 0;
      machine.touch_global(*this, agent_, piece.global, piece.count,
                           {.writes = true, .strong = reduces, .repeats = repeats});
    }
    if (reduction_ < 0)
      copy_piece(to, from, piece.count);
    else
      tma_reduce(Reduction(reduction_), transfer_.type, {from, piece.count}, {to, piece.count});
  }

  Transfer transfer_;
  std::vector<std::shared_ptr<BulkGroup>> groups_;
  const void* key_;
  const int reduction_;
  std::vector<uint8_t> data_;
  size_t read_ = 0, written_ = 0;
  AgentId agent_ = kNoAgent;
};

// Shared memory of this CTA to that of another (or this one), counted on an mbarrier there.
class SharedCopy final : public Operation {
 public:
  SharedCopy(Step& s, uint32_t from, Cta& to, uint32_t to_offset, uint32_t bytes, Cta& barrier_cta,
             uint32_t barrier_offset)
      : Operation(s.line, s.cta),
        from_(from),
        to_(to),
        to_offset_(to_offset),
        bytes_(bytes),
        barrier_cta_(barrier_cta),
        barrier_offset_(barrier_offset) {
    ++issuer->operations;
    ++to_.operations;
    if (s.machine.checking()) std::memset(to_.undefined.data() + to_offset, 1, bytes);
    if (RaceDetector* races = s.cta.cluster->races.get()) agent_ = races->begin_operation(actor_of(s));
    s.machine.report().bytes["shared copy"] += this->bytes = bytes;
  }

  bool step(Machine& machine) override {
    const uint32_t count = kPieceBytes * machine.part((bytes_ - done_) / kPieceBytes);
    machine.touch_shared(*this, agent_, *issuer, from_ + done_, count, false);
    machine.touch_shared(*this, agent_, to_, to_offset_ + done_, count, true);
    std::memmove(to_.shared.data() + to_offset_ + done_, issuer->shared.data() + from_ + done_, count);
    std::memmove(to_.undefined.data() + to_offset_ + done_, issuer->undefined.data() + from_ + done_, count);
    done_ += count;
    MBarrier& barrier = machine.mbarrier_of(barrier_cta_, barrier_offset_, *this);
    RaceDetector* races = issuer->cluster->races.get();
    if (races) races->end_operation(agent_, barrier.clocks);
    machine.advance(barrier, barrier.complete(count));
    if (done_ < bytes_) return false;
    if (races) races->retire(agent_);
    --issuer->operations;
    --to_.operations;
    return true;
  }

 private:
  const uint32_t from_;
  Cta& to_;
  const uint32_t to_offset_, bytes_;
  Cta& barrier_cta_;
  const uint32_t barrier_offset_;
  uint32_t done_ = 0;
  AgentId agent_ = kNoAgent;
};

// --- bulk groups

BulkGroups& groups_of(Step& s, uint32_t lane) {
  if (!s.warp.bulk) s.warp.bulk = std::make_unique<BulkGroups[]>(kLanes);
  return s.warp.bulk[lane];
}

std::shared_ptr<BulkGroup> open_group(Step& s, uint32_t lane) {
  BulkGroups& groups = groups_of(s, lane);
  if (!groups.open) groups.open = std::make_shared<BulkGroup>();
  return groups.open;
}

void commit_group(Step& s, const Instruction&) {
  for_lanes(s.active, [&](uint32_t i) {
    BulkGroups& groups = groups_of(s, i);
    groups.committed.push_back(groups.open ? std::move(groups.open) : std::make_shared<BulkGroup>());
    groups.open.reset();
  });
}

// All but the `immediate` youngest groups must be complete, or (detail) have read their source. Lanes that wait
// together go on together, so none of them knows anything before all may go on.
void wait_group(Step& s, const Instruction& in) {
  bool done = true;
  for_lanes(s.active, [&](uint32_t i) {
    const auto& groups = groups_of(s, i).committed;
    for (size_t g = 0; g + in.immediate < groups.size(); ++g)
      done &= (in.detail ? groups[g]->reading : groups[g]->writing) == 0;
  });
  if (!done) return s.park(Wait::kBulkGroup, s.warp.bulk.get());
  RaceDetector* races = s.cta.cluster->races.get();
  for_lanes(s.active, [&](uint32_t i) {
    auto& [forgotten, open, groups] = groups_of(s, i);
    const Actor who{s.warp.agent, i == 0 && s.warp.live != 1 ? Lanes::kFirst : Lanes::kAll};
    for (size_t g = 0; g + in.immediate < groups.size(); ++g) {
      if (std::exchange(groups[g]->read_waited, true)) continue;
      for (const auto& agent : groups[g]->agents)
        if (--agent->read_unwaited == 0) races->observe(who, agent->id, agent->reads);
    }
    if (races && !in.detail) races->observe(who, forgotten);
    for (; groups.size() > in.immediate && groups.front()->writing == 0; groups.pop_front())
      for (const auto& agent : groups.front()->agents) {
        if (--agent->unwaited) continue;
        if (in.detail)
          forgotten.set(agent->id, races->time(agent->id));
        else
          races->observe(who, agent->id);
        races->retire(agent->id);
      }
  });
  s.machine.trace_pass(s, nullptr, in.immediate);
}

// --- decoded forms. in.s: 0 destination or map, 1 source or map, then by form.

enum class Form : uint32_t { kLoad, kStore, kSharedToShared };
std::vector<Load::Destination> destinations(Step& s, const Instruction& in, const Location& to, const Location& barrier,
                                            uint32_t lane, uint32_t mask_source) {
  if (!(in.detail & Flags::kMulticast)) return {{to.cta, barrier.cta, uint32_t(barrier.offset)}};
  check_use(s, in.s[mask_source], "a multicast mask");
  const uint32_t mask = uint32_t(lane_value(s, in.s[mask_source], lane)) & 0xffff;
  std::vector<Load::Destination> out;
  Cluster& cluster = *s.cta.cluster;
  if (mask == 0 || mask >> cluster.size())
    throw Error("multicast mask " + std::to_string(mask) + " names CTAs that the cluster lacks");
  for_lanes(mask, [&](uint32_t rank) {
    // cta_group::2: the barrier of the CTA of the pair that has the parity of the barrier operand's CTA.
    const uint32_t barrier_rank = in.detail & Flags::kPair ? (rank & ~1u) | (barrier.cta->rank & 1) : rank;
    out.push_back({cluster.ctas.at(rank).get(), cluster.ctas.at(barrier_rank).get(), uint32_t(barrier.offset)});
  });
  for (const auto& to_cta : out)
    if (to_cta.cta->exited || to_cta.barrier_cta->exited) throw Error("a multicast load reaches a CTA that has exited");
  return out;
}

// sources: tensor: dst, map, barrier [, mask]; else: dst, src, size, barrier [, mask]. Offsets in `Statement`.
void copy_in(Step& s, const Instruction& in) {
  const auto& operands = in.statement->operands;
  for (uint32_t i = 0; i < 2; ++i) check_use(s, in.s[i], "an address");
  const bool tensor = in.detail & Flags::kTensor;
  const uint32_t barrier_source = tensor ? 2 : 3;
  const auto form = Form(in.target);
  for_lanes(s.active, [&](uint32_t lane) {
    const auto address = [&](uint32_t source, uint32_t operand) {
      return lane_address(s, in.s[source], operands[operand].bits, lane);
    };
    const Location barrier = s.machine.locate_shared(s.cta, address(barrier_source, barrier_source), 8, 8);
    const uint64_t to_address = address(0, 0);
    if (!(in.detail & Flags::kPair) && !(in.detail & Flags::kMulticast)) {
      const Location to = s.machine.locate_shared(s.cta, to_address, 16, 16);
      if (to.cta != barrier.cta) throw Error("the mbarrier must lie in the CTA that the copy writes to");
    }
    if (form == Form::kSharedToShared) {
      const uint32_t bytes = row32(s, in.s[2])[lane];
      if (bytes == 0 || bytes % 16) throw Error("a bulk copy moves a multiple of 16 bytes");
      const Location to = s.machine.locate_shared(s.cta, to_address, bytes, 16),
                     from = s.machine.locate_shared(s.cta, address(1, 1), bytes, 16);
      s.machine.issue(std::make_unique<SharedCopy>(s, uint32_t(from.offset), *to.cta, uint32_t(to.offset), bytes,
                                                   *barrier.cta, uint32_t(barrier.offset)));
      return;
    }
    Transfer transfer;
    Location to = s.machine.locate_shared(s.cta, to_address, 16, tensor ? 128 : 16);
    const auto shared = uint32_t(kSharedBase + to.offset);
    if (tensor) {
      transfer = tensor_transfer(s, in, TmaDirection::kLoad, address(1, 1), shared, lane);
    } else {
      const uint32_t bytes = row32(s, in.s[2])[lane];
      if (bytes == 0 || bytes % 16 || bytes > kMaxSharedBytes || address(1, 1) % 16)
        throw Error("a bulk copy moves a multiple of 16 bytes, 16-byte aligned");
      transfer = linear_transfer(address(1, 1), shared, bytes);
    }
    to = s.machine.locate_shared(s.cta, to_address, transfer.shared_bytes(), 16);
    auto all = destinations(s, in, to, barrier, lane, barrier_source + 1);
    s.machine.issue(std::make_unique<Load>(s, std::move(transfer), std::move(all)));
  });
}

// Lanes that store the same bytes to the same place, by their operands, each lane's own operation otherwise. Compilers
// leave it to ptxas to have one lane store. A reduction counts for each lane.
std::vector<uint32_t> same_stores(Step& s, const Instruction& in, uint64_t from[], uint64_t to[]) {
  const bool reduces = in.immediate & 255, tensor = in.detail & Flags::kTensor;
  const auto same = [&](uint32_t a, uint32_t b) {
    if (reduces || from[a] != from[b] || to[a] != to[b]) return false;
    if (!tensor) return row32(s, in.s[2])[a] == row32(s, in.s[2])[b];
    return std::all_of(in.list.begin(), in.list.end(), [&](Reg reg) { return row32(s, reg)[a] == row32(s, reg)[b]; });
  };
  std::vector<uint32_t> stores;
  for_lanes(s.active, [&](uint32_t lane) {
    const auto other = std::find_if(stores.begin(), stores.end(),
                                    [&](uint32_t lanes) { return same(uint32_t(std::countr_zero(lanes)), lane); });
    if (other != stores.end())
      *other |= 1u << lane;
    else
      stores.push_back(1u << lane);
  });
  return stores;
}

// sources: map or dst, src [, size].
void copy_out(Step& s, const Instruction& in) {
  const auto& operands = in.statement->operands;
  for (uint32_t i = 0; i < 2; ++i) check_use(s, in.s[i], "an address");
  const bool tensor = in.detail & Flags::kTensor;
  uint64_t to[kLanes], from[kLanes];
  for_lanes(s.active, [&](uint32_t lane) {
    to[lane] = lane_address(s, in.s[0], operands[0].bits, lane);
    from[lane] = lane_address(s, in.s[1], operands[1].bits, lane);
  });
  for (const uint32_t lanes : same_stores(s, in, from, to)) {
    const auto lane = uint32_t(std::countr_zero(lanes));
    const Location source = s.machine.locate_shared(s.cta, from[lane], 16, tensor ? 128 : 16);
    if (source.cta != &s.cta) throw Error("a bulk store reads the shared memory of its own CTA only");
    const auto shared = uint32_t(kSharedBase + source.offset);
    Transfer transfer;
    if (tensor) {
      transfer = tensor_transfer(s, in, TmaDirection::kStore, to[lane], shared, lane);
    } else {
      const uint32_t bytes = row32(s, in.s[2])[lane];
      if (bytes == 0 || bytes % 16 || bytes > kMaxSharedBytes || to[lane] % 16)
        throw Error("a bulk copy moves a multiple of 16 bytes, 16-byte aligned");
      transfer = linear_transfer(to[lane], shared, bytes);
      transfer.type = TensorMapType(in.immediate >> 8);
    }
    s.machine.locate_shared(s.cta, from[lane], transfer.bytes, 16);
    std::vector<std::shared_ptr<BulkGroup>> groups;
    for_lanes(lanes, [&](uint32_t i) { groups.push_back(open_group(s, i)); });
    auto store = std::make_unique<Store>(s, std::move(transfer), std::move(groups), s.warp.bulk.get(),
                                         int(in.immediate & 255) - 1);
    store->lanes = lanes;
    s.machine.issue(std::move(store));
  }
}

// --- decoding

void base_source(Decoder& d, size_t i) {
  const Operand& address = d.operand(i);
  if (address.kind != Operand::Kind::kAddress) d.fail("operand " + std::to_string(i + 1) + " must be an address in []");
  const Operand& base = address.parts[0];
  const bool narrow =
      base.kind == Operand::Kind::kRegister && size_bytes(d.rows.function.registers[base.index].type) == 4;
  d.source(base, narrow || base.kind == Operand::Kind::kVariable ? Type::k_b32 : Type::k_b64);
}

// A map's address is 64 bits wide, also where it is a symbol.
void map_source(Decoder& d, size_t i) {
  const Operand& address = d.operand(i);
  if (address.kind != Operand::Kind::kAddress || address.parts.size() != 2 ||
      address.parts[1].kind != Operand::Kind::kVector)
    d.fail("operand " + std::to_string(i + 1) + " must be [tensor map, {coordinates}]");
  d.source(address.parts[0], Type::k_b64);
  for (const Operand& coordinate : address.parts[1].parts) d.out.list.push_back(d.read(coordinate, Type::k_b32));
  const size_t count = d.out.list.size();
  const bool rows = d.has("tile::gather4") || d.has("tile::scatter4");
  if (rows ? !d.has("2d") || count != kGatheredRows + 1 : !d.has(std::to_string(count) + "d"))
    d.fail("has " + std::to_string(count) + " coordinates");
  if (rows) d.out.detail |= Flags::kRows;
}

int reduction_of(const Decoder& d) {
  static constexpr std::pair<std::string_view, Reduction> kOps[] = {
      {"add", Reduction::kAdd}, {"min", Reduction::kMin}, {"max", Reduction::kMax}, {"inc", Reduction::kInc},
      {"dec", Reduction::kDec}, {"and", Reduction::kAnd}, {"or", Reduction::kOr},   {"xor", Reduction::kXor}};
  for (const auto& [name, op] : kOps)
    if (d.has(name)) return int(op);
  d.fail("needs a reduction operation");
}

TensorMapType element_type(const Decoder& d) {
  switch (d.type()) {
    case Type::k_u32:
    case Type::k_b32:
      return TensorMapType::kU32;
    case Type::k_s32:
      return TensorMapType::kS32;
    case Type::k_u64:
    case Type::k_b64:
      return TensorMapType::kU64;
    case Type::k_s64:
      return TensorMapType::kS64;
    case Type::k_f16:
      return TensorMapType::kF16;
    case Type::k_bf16:
      return TensorMapType::kBf16;
    case Type::k_f32:
      return TensorMapType::kF32;
    case Type::k_f64:
      return TensorMapType::kF64;
    default:
      d.fail("does not reduce this type");
  }
}

// The destination is the first of the two state spaces in the opcode.
bool is_store(const Decoder& d) {
  for (const std::string_view modifier : d.modifiers) {
    if (modifier == "global") return true;
    if (modifier.starts_with("shared")) return false;
  }
  d.fail("needs its state spaces");
}

void tail(Decoder& d, size_t used) {
  if (d.has("multicast::cluster")) {
    d.out.detail |= Flags::kMulticast;
    d.source(used++, Type::k_b16);
  }
  if (d.has("L2::cache_hint")) d.read(d.operand(used++), Type::k_b64);
  if (used != d.operands()) d.fail("has too many operands");
}

}  // namespace

void decode_bulk_tensor(Decoder& d) {
  d.out.detail = Flags::kTensor;
  if (d.has("cta_group::2")) d.out.detail |= Flags::kPair;
  const bool stores = is_store(d);
  if (d.has(stores ? "tile::gather4" : "tile::scatter4")) d.fail("gathers into shared memory, and scatters from it");
  if (stores) {
    if (!d.has("bulk_group")) d.fail("needs .bulk_group");
    map_source(d, 0);
    base_source(d, 1);
    tail(d, 2);
    d.out.execute = copy_out;
    return;
  }
  if (!d.has("mbarrier::complete_tx::bytes")) d.fail("needs .mbarrier::complete_tx::bytes");
  base_source(d, 0);
  map_source(d, 1);
  base_source(d, 2);
  tail(d, 3);
  d.out.target = uint32_t(Form::kLoad);
  d.out.execute = copy_in;
}

void decode_bulk_tensor_reduce(Decoder& d) {
  d.out.detail = Flags::kTensor;
  map_source(d, 0);
  base_source(d, 1);
  tail(d, 2);
  d.out.immediate = uint64_t(reduction_of(d)) + 1;
  d.out.execute = copy_out;
}

void decode_bulk(Decoder& d) {
  if (is_store(d)) {
    base_source(d, 0);
    base_source(d, 1);
    d.source(2, Type::k_b32);
    tail(d, 3);
    d.out.execute = copy_out;
    return;
  }
  base_source(d, 0);
  base_source(d, 1);
  d.source(2, Type::k_b32);
  base_source(d, 3);
  tail(d, 4);
  d.out.target = uint32_t(d.has("global") ? Form::kLoad : Form::kSharedToShared);
  d.out.execute = copy_in;
}

void decode_bulk_reduce(Decoder& d) {
  if (!is_store(d)) d.fail("is supported into global memory only");
  base_source(d, 0);
  base_source(d, 1);
  d.source(2, Type::k_b32);
  tail(d, 3);
  d.out.immediate = (uint64_t(reduction_of(d)) + 1) | uint64_t(element_type(d)) << 8;
  d.out.execute = copy_out;
}

void decode_bulk_commit(Decoder& d) { d.out.execute = commit_group; }
void decode_bulk_wait(Decoder& d) {
  d.out.immediate = d.constant(0);
  d.out.detail = d.has("read");
  d.out.flags |= kMayPark;
  d.out.execute = wait_group;
}

}  // namespace jaxbw::emulator
