// tcgen05: Tensor Memory and the fifth-generation tensor core (PTX 9.7.16). The arithmetic is umma.h's and tmem.h's;
// here is when it happens.
//
// mma, cp and commit of a CTA go through one queue, in order (PTX 9.7.16.6.2). ld and st are operations of their own,
// that wait::ld and wait::st wait for. While an mma is under way, the cells of its accumulator belong to it.
//
// Longer than other files: the instructions share the queue, the descriptors' decoding and the cells in flight.
#include <algorithm>
#include <utility>

#include "decoder.h"
#include "lanes.h"
#include "operands.h"
#include "remote_arrivals.h"
#include "umma.h"

namespace jaxbw::emulator {
namespace {

constexpr uint32_t kQuarterLanes = 32, kHalfQuarter = kQuarterLanes / 2;
constexpr uint64_t kPair = 1;  // in Instruction::detail: .cta_group::2

SharedView shared_view(const Cta& cta) { return {cta.shared.data(), kSharedBase, uint32_t(cta.shared.size())}; }

CtaTmem& tmem_of(Cta& cta) {
  if (!cta.tmem) throw Error("tensor memory is used before any tcgen05.alloc of this CTA");
  return *cta.tmem;
}

Cta& peer_of(Cta& cta) {
  if (cta.cluster->size() < 2) throw Error(".cta_group::2 needs a cluster of at least two CTAs");
  return *cta.cluster->ctas.at(cta.rank ^ 1);
}

// The CTAs that an instruction of the issuing CTA works on: itself, or the pair that it leads.
std::vector<Cta*> group_of(Cta& issuer, uint32_t cta_group) {
  if (cta_group == 1) return {&issuer};
  Cta& peer = peer_of(issuer);
  if (issuer.rank & 1) throw Error(".cta_group::2 is issued by the even CTA of the pair");
  return {&issuer, &peer};
}

template <class F>
void for_half_quarters(const TmemRegion& region, F f) {
  const uint32_t end = (region.lane + region.lanes + kHalfQuarter - 1) / kHalfQuarter;
  for (uint32_t half = region.lane / kHalfQuarter; half < end; ++half) f(half);
}

void mark_pending(CtaTmem& tmem, const TmemRegion& region, int change) {
  for_half_quarters(region, [&](uint32_t half) {
    for (uint32_t c = 0; c < region.columns; ++c) tmem.pending[half * kTmemColumns + region.column + c] += change;
  });
}

bool any_pending(const CtaTmem& tmem, const TmemRegion& region) {
  bool any = false;
  for_half_quarters(region, [&](uint32_t half) {
    const uint16_t* row = &tmem.pending[half * kTmemColumns + region.column];
    any |= std::any_of(row, row + region.columns, [](uint16_t count) { return count != 0; });
  });
  return any;
}

void mark_defined(CtaTmem& tmem, const TmemRegion& region, bool poison = false) {
  for (uint32_t lane = region.lane; lane < region.lane + region.lanes; ++lane)
    std::fill_n(&tmem.undefined[lane * kTmemColumns + region.column], region.columns, uint8_t{poison});
}

bool any_undefined(const CtaTmem& tmem, const TmemRegion& region) {
  for (uint32_t lane = region.lane; lane < region.lane + region.lanes; ++lane) {
    const uint8_t* row = &tmem.undefined[lane * kTmemColumns + region.column];
    if (std::any_of(row, row + region.columns, [](uint8_t flag) { return flag != 0; })) return true;
  }
  return false;
}

void check_allocated(CtaTmem& tmem, const TmemRegion& region, const char* what) {
  if (!tmem.allocator.is_allocated(region.column, region.columns))
    throw Error(std::string(what) + " touches tensor memory columns " + std::to_string(region.column) + " to " +
                std::to_string(region.column + region.columns - 1) + ", which are not all allocated");
}

bool poisoned(const Cta& cta, uint32_t address, uint32_t bytes) {
  const uint8_t* flags =
      SharedView{cta.undefined.data(), kSharedBase, uint32_t(cta.undefined.size())}.at(address, bytes);
  return std::any_of(flags, flags + bytes, [](uint8_t flag) { return flag != 0; });
}

// --- allocation (PTX 9.7.16.7)

CtaTmem& made_tmem(Cta& cta) {
  if (!cta.tmem) cta.tmem = std::make_unique<CtaTmem>();
  return *cta.tmem;
}

void forget_races(Cta& cta, uint32_t address, uint32_t columns) {
  if (RaceDetector* races = cta.cluster->races.get()) races->forget_tensor(cta.rank, tmem_column(address), columns);
}

std::optional<uint32_t> allocate_alone(Step& s, uint32_t columns) {
  const auto address = made_tmem(s.cta).allocator.allocate(columns);
  if (address) forget_races(s.cta, *address, columns);
  return address;
}

// Two warps, one in each CTA of the pair, allocate together: the first waits for the second, and when either goes on
// the columns are allocated in both (PTX 9.7.16.5).
std::optional<uint32_t> allocate_pair(Step& s, uint32_t columns) {
  Cta& peer = peer_of(s.cta);
  CtaTmem &own = made_tmem(s.cta), &other = made_tmem(peer);
  if (own.given) return std::exchange(own.given, std::nullopt);
  own.asked = columns;
  if (!other.asked) return std::nullopt;
  if (*other.asked != columns)
    throw Error("tcgen05.alloc: " + std::to_string(columns) + " columns, but the other CTA of the pair allocates " +
                std::to_string(*other.asked));
  const auto address = TmemAllocator::allocate_in_each({&own.allocator, &other.allocator}, columns);
  if (!address) return std::nullopt;
  own.asked = other.asked = std::nullopt;
  other.given = address;
  for (Cta* cta : {&s.cta, &peer}) forget_races(*cta, *address, columns);
  s.machine.wake(&other);
  return address;
}

// Allocating and freeing with the peer do not make the CTAs wait for each other: the peer must have been launched,
// known by a barrier of the cluster or an arrival from it, and its own allocation must have ended before this CTA
// frees. On a GPU the instruction fails otherwise.
void check_pair(Step& s, const std::string& what) {
  if (!s.machine.checking()) return;
  const Cta& peer = peer_of(s.cta);
  const bool frees = what == "tcgen05.dealloc";
  // To free after a peer that has freed and exited is right: CUTLASS does.
  if (peer.exited && !frees)
    s.machine.finding("tmem", s, what + ".cta_group::2 after the other CTA of the pair has exited");
  if (frees && peer.tmem && peer.tmem->given)
    s.machine.finding("tmem", s,
                      what +
                          ".cta_group::2 before the tcgen05.alloc of the other CTA of the pair has ended: a barrier "
                          "of the cluster must stand between");
  if (s.cta.cluster->barrier_phase == 0 && !s.cta.heard_of_cluster)
    s.machine.finding("tmem", s,
                      what +
                          ".cta_group::2 without knowing that the other CTA of the pair has been launched: a barrier "
                          "of the cluster must come first");
}

void allocate(Step& s, const Instruction& in) {
  const uint32_t lane = first_lane(s);
  const uint32_t columns = row32(s, in.s[1])[lane];
  if (in.detail & kPair && !(s.cta.tmem && (s.cta.tmem->asked || s.cta.tmem->given))) check_pair(s, "tcgen05.alloc");
  const auto address = in.detail & kPair ? allocate_pair(s, columns) : allocate_alone(s, columns);
  if (!address) return s.park(Wait::kTmemAllocation, s.cta.tmem.get());
  s.machine.count(in);
  const Location to = s.machine.locate_shared(s.cta, lane_address(s, in.s[0], in.immediate, lane), 4, 4);
  std::copy_n(reinterpret_cast<const uint8_t*>(&*address), 4, to.bytes);
  std::fill_n(to.undefined, 4, 0);
  s.machine.touch_shared(s, kAnyLane, to, 4, true);
}

void deallocate(Step& s, const Instruction& in) {
  check_use(s, in.s[0], "a tensor memory address");
  const uint32_t lane = first_lane(s);
  const uint32_t address = row32(s, in.s[0])[lane], columns = row32(s, in.s[1])[lane];
  CtaTmem& tmem = tmem_of(s.cta);
  if (in.detail & kPair) check_pair(s, "tcgen05.dealloc");
  const TmemRegion region{0, kTmemLanes, tmem_column(address), columns};
  check_tmem_region(region, "tcgen05.dealloc");
  if (s.machine.checking() && any_pending(tmem, region))
    s.machine.finding("tmem", s, "tcgen05.dealloc of columns that an MMA in flight still writes");
  tmem.allocator.deallocate(address, columns);
  s.machine.touch_tensor(s, region);  // whoever accessed the columns must be done
  mark_defined(tmem, region, true);
  s.machine.wake(&tmem);
  if (in.detail & kPair) s.machine.wake(peer_of(s.cta).tmem.get());
}

void relinquish(Step& s, const Instruction&) { tmem_of(s.cta).allocator.relinquish(); }

// --- ld and st (PTX 9.7.16.8)

TmemAccess access_of(const Instruction& in) {
  return {.shape = TmemShape(in.detail & 255),
          .repeat = uint32_t(in.detail >> 8 & 255),
          .packed = bool(in.detail >> 16 & 1),
          .half_split = in.target};
}

// The hardware reaches the warp's own quarter of the lanes whatever the address says of the quarter (bits 5 and 6 of
// the lane). PTX 9.7.16.8.1 wants the quarter named.
uint32_t in_own_quarter(Step& s, uint32_t address) {
  constexpr uint32_t kQuarterBits = 3 * kQuarterLanes << 16;
  const uint32_t own = s.warp.index % 4 * kQuarterLanes << 16;
  if (s.machine.strict() && (address & kQuarterBits) != own)
    s.machine.finding("tmem", s,
                      "lane " + std::to_string(tmem_lane(address)) +
                          " of the address is not in the quarter that warp " + std::to_string(s.warp.index) +
                          " reaches, lanes " + std::to_string(tmem_lane(own)) + " to " +
                          std::to_string(tmem_lane(own) + kQuarterLanes - 1) + ": the hardware ignores these bits");
  return (address & ~kQuarterBits) | own;
}

class RegisterMove : public Operation {
 public:
  RegisterMove(Step& s, const Instruction& in, uint32_t& outstanding, bool stores)
      : Operation(s.line, s.cta),
        warp_(s.warp),
        in_(in),
        access_(access_of(in)),
        outstanding_(outstanding),
        address_(in_own_quarter(s, uint32_t(row32(s, in.s[0])[0] + in.immediate))),
        regions_(tmem_access_regions(access_, address_, s.warp.index)) {
    ++outstanding_;
    ++s.warp.tmem_issued;
    if (RaceDetector* races = s.cta.cluster->races.get())
      s.warp.tmem_agents[stores].push_back({agent_ = races->begin_operation(actor_of(s)), s.warp.tmem_issued});
    CtaTmem& tmem = tmem_of(s.cta);
    for (const TmemRegion& region : regions_) {
      check_allocated(tmem, region, in.statement->opcode.c_str());
      if (s.machine.checking() && any_pending(tmem, region))
        s.machine.finding(
            "tmem", s,
            "accesses an accumulator that an MMA in flight still writes: its commit has not been waited for");
    }
  }

 protected:
  void finish(Machine& machine) {
    --outstanding_;
    machine.wake(&outstanding_);
  }

  Warp& warp_;
  const Instruction& in_;
  const TmemAccess access_;
  uint32_t& outstanding_;
  const uint32_t address_;
  const std::vector<TmemRegion> regions_;
  AgentId agent_ = kNoAgent;
};

class TmemLoad final : public RegisterMove {
 public:
  TmemLoad(Step& s, const Instruction& in) : RegisterMove(s, in, s.warp.tmem_loads, false) {
    for (const Reg reg : in.list) {
      ++s.warp.state(reg).loads;
      if (!s.machine.checking()) continue;
      s.warp.state(reg).unwaited = RowState::Unwaited::kLoaded;
      s.warp.state(reg).load = s.warp.tmem_issued;
      s.warp.unwaited.push_back(reg);
    }
    ++s.warp.in_flight;
    s.machine.report().bytes["tmem load"] += bytes = in.list.size() * kLanes * 4;
  }

  bool step(Machine& machine) override {
    CtaTmem& tmem = tmem_of(*issuer);
    std::vector<uint32_t> values(in_.list.size() * kLanes);
    tmem_load(tmem.memory, access_, address_, warp_.index, values);
    bool poison = false;
    for (const TmemRegion& region : regions_) {
      machine.touch_tensor(*this, agent_, *issuer, region, false);
      poison |= any_undefined(tmem, region);
    }
    for (size_t reg = 0; reg < in_.list.size(); ++reg) {
      std::copy_n(&values[reg * kLanes], kLanes, reinterpret_cast<uint32_t*>(warp_.file + in_.list[reg].at));
      warp_.undefined(in_.list[reg]) = poison ? lanes_undefined(tmem, uint32_t(reg)) : 0;
      --warp_.state(in_.list[reg]).loads;
    }
    --warp_.in_flight;
    finish(machine);
    return true;
  }

 private:
  uint32_t lanes_undefined(const CtaTmem& tmem, uint32_t reg) const {
    uint32_t mask = 0;
    for (uint32_t thread = 0; thread < kLanes; ++thread) {
      const TmemCell cell = tmem_cell(access_, thread, reg);
      const uint32_t lane = tmem_lane(address_) + cell.lane, column = tmem_column(address_) + cell.column;
      mask |= uint32_t{tmem.undefined[lane * kTmemColumns + column] != 0} << thread;
    }
    return mask;
  }
};

class TmemStore final : public RegisterMove {
 public:
  TmemStore(Step& s, const Instruction& in)
      : RegisterMove(s, in, s.warp.tmem_stores, true), values_(in.list.size() * kLanes) {
    for (size_t reg = 0; reg < in.list.size(); ++reg) {
      std::copy_n(row32(s, in.list[reg]), kLanes, &values_[reg * kLanes]);
      poison_ |= undefined(s, in.list[reg]) != 0;
    }
    s.machine.report().bytes["tmem store"] += bytes = in.list.size() * kLanes * 4;
  }

  bool step(Machine& machine) override {
    CtaTmem& tmem = tmem_of(*issuer);
    tmem_store(tmem.memory, access_, address_, warp_.index, values_);
    for (const TmemRegion& region : regions_) {
      machine.touch_tensor(*this, agent_, *issuer, region, true);
      mark_defined(tmem, region, poison_);
    }
    finish(machine);
    return true;
  }

 private:
  std::vector<uint32_t> values_;
  bool poison_ = false;
};

void load_tmem(Step& s, const Instruction& in) {
  check_use(s, in.s[0], "a tensor memory address");
  s.machine.issue(std::make_unique<TmemLoad>(s, in));
}

void store_tmem(Step& s, const Instruction& in) {
  check_use(s, in.s[0], "a tensor memory address");
  s.machine.issue(std::make_unique<TmemStore>(s, in));
}

void wait_registers(Step& s, const Instruction& in) {
  uint32_t& outstanding = in.target ? s.warp.tmem_stores : s.warp.tmem_loads;
  if (outstanding) return s.park(Wait::kTmemAccess, &outstanding);
  s.machine.trace_pass(s, nullptr);
  RaceDetector* races = s.cta.cluster->races.get();
  auto& agents = s.warp.tmem_agents[in.target];
  for (const auto& agent : agents) {
    races->observe({s.warp.agent, Lanes::kEach}, agent.id);
    races->retire(agent.id);
  }
  agents.clear();
  if (in.target) return;
  for (const Reg reg : s.warp.unwaited) s.warp.state(reg).unwaited = RowState::Unwaited::kNo;
  s.warp.unwaited.clear();
}

// --- the queue: mma, cp, commit

// An operation of the in-order queue, and what that queue's agent knows when it comes to it.
class TensorCoreOperation : public Operation {
 public:
  explicit TensorCoreOperation(Step& s) : Operation(s.line, s.cta) {
    if (RaceDetector* races = s.cta.cluster->races.get())
      known_ = races->issue_to_tensor_core(s.cta.tensor_core_agent, actor_of(s));
  }

 protected:
  AgentId begin_step() {
    if (RaceDetector* races = issuer->cluster->races.get()) races->begin_engine_step(issuer->tensor_core_agent, known_);
    return issuer->tensor_core_agent;
  }

 private:
  Clocks known_;
};

class Multiply final : public TensorCoreOperation {
 public:
  Multiply(Step& s, Umma op) : TensorCoreOperation(s), op_(std::move(op)), ctas_(group_of(s.cta, op_.cta_group)) {
    check_umma(op_);
    for (Cta* cta : ctas_) {
      if (cta->exited) throw Error("the MMA works on a CTA that has exited");
      ++cta->operations;
      CtaTmem& tmem = tmem_of(*cta);
      for (const TmemRegion& region : umma_d_regions(op_)) {
        check_allocated(tmem, region, "tcgen05.mma");
        mark_pending(tmem, region, 1);
      }
      for (const TmemRegion& region : umma_scale_regions(op_)) check_allocated(tmem, region, "tcgen05.mma");
    }
    ++s.machine.report().operations["mma"];
    const UmmaInstruction& mma = op_.instruction;
    shape = {mma.m, mma.n, kMmaKBytes};
    s.machine.report().bytes["mma operands"] += bytes = (op_.a_in_tmem ? mma.n : mma.m + mma.n) * kMmaKBytes;
  }

  bool step(Machine& machine) override {
    std::vector<UmmaCta> parts;
    const AgentId agent = begin_step();
    for (Cta* cta : ctas_) {
      if (machine.checking()) check_sources(machine, *cta);
      if (machine.checking()) touch(machine, *cta, agent);
      parts.push_back({shared_view(*cta), &tmem_of(*cta).memory});
    }
    execute_umma(op_, parts);
    for (Cta* cta : ctas_) {
      CtaTmem& tmem = tmem_of(*cta);
      for (const TmemRegion& region : umma_d_regions(op_)) {
        mark_pending(tmem, region, -1);
        mark_defined(tmem, region);
      }
      --cta->operations;
    }
    return true;
  }

 private:
  void touch(Machine& machine, Cta& cta, AgentId agent) {
    for (const auto& [address, bytes] : umma_shared_chunks(op_))
      machine.touch_shared(*this, agent, cta, address - kSharedBase, bytes, false);
    for (const TmemRegion& region : umma_a_regions(op_)) machine.touch_tensor(*this, agent, cta, region, false);
    for (const TmemRegion& region : umma_scale_regions(op_)) machine.touch_tensor(*this, agent, cta, region, false);
    for (const TmemRegion& region : umma_d_regions(op_)) machine.touch_tensor(*this, agent, cta, region, true);
  }

  void check_sources(Machine& machine, Cta& cta) {
    const std::vector<OperandChunk> chunks = umma_shared_chunks(op_);
    const auto is_poisoned = [&](const OperandChunk& chunk) { return poisoned(cta, chunk.address, chunk.bytes); };
    if (std::any_of(chunks.begin(), chunks.end(), is_poisoned))
      machine.finding("poison", *this,
                      "tcgen05.mma reads shared memory that was never written, or that a copy in flight will write");
    CtaTmem& tmem = tmem_of(cta);
    for (const TmemRegion& region : umma_a_regions(op_))
      if (any_undefined(tmem, region))
        machine.finding("poison", *this, "tcgen05.mma reads an A in tensor memory that was never written");
    for (const TmemRegion& region : umma_scale_regions(op_))
      if (any_undefined(tmem, region))
        machine.finding("poison", *this, "tcgen05.mma reads scales that were never written");
    if (!op_.accumulate) return;
    for (const TmemRegion& region : umma_d_regions(op_))
      if (any_undefined(tmem, region))
        machine.finding("poison", *this, "tcgen05.mma accumulates onto tensor memory that was never written");
  }

  const Umma op_;
  const std::vector<Cta*> ctas_;
};

class Copy final : public TensorCoreOperation {
 public:
  Copy(Step& s, TmemCopyShape shape, SharedMatrix source, uint32_t address, uint32_t cta_group)
      : TensorCoreOperation(s), shape_(shape), source_(source), address_(address), ctas_(group_of(s.cta, cta_group)) {
    if (RaceDetector* races = s.cta.cluster->races.get())
      writer_ = races->begin_tensor_copy(s.cta.tensor_core_agent, actor_of(s));
    for (Cta* cta : ctas_) {
      ++cta->operations;
      for (const TmemRegion& region : tmem_copy_regions(shape_, address_)) {
        check_allocated(tmem_of(*cta), region, "tcgen05.cp");
        mark_pending(tmem_of(*cta), region, 1);
      }
    }
    ++s.machine.report().operations["tmem copy"];
  }

  bool step(Machine& machine) override {
    const AgentId agent = begin_step();
    for (Cta* cta : ctas_) {
      CtaTmem& tmem = tmem_of(*cta);
      const std::vector<uint32_t> chunks = tmem_copy_chunks(shape_, source_);
      for (const uint32_t address : chunks)
        machine.touch_shared(*this, agent, *cta, address - kSharedBase, kChunkBytes, false);
      const auto is_poisoned = [&](uint32_t address) { return poisoned(*cta, address, kChunkBytes); };
      if (machine.checking() && std::any_of(chunks.begin(), chunks.end(), is_poisoned))
        machine.finding("poison", *this, "tcgen05.cp reads shared memory that was never written");
      tmem_copy(shape_, shared_view(*cta), source_, tmem.memory, address_);
      for (const TmemRegion& region : tmem_copy_regions(shape_, address_)) {
        machine.touch_tensor(*this, writer_, *cta, region, true);
        mark_pending(tmem, region, -1);
        mark_defined(tmem, region);
      }
      --cta->operations;
    }
    RaceDetector* races = issuer->cluster->races.get();
    if (races && writer_ != agent) races->retire(writer_);
    return true;
  }

 private:
  const TmemCopyShape shape_;
  const SharedMatrix source_;
  const uint32_t address_;
  const std::vector<Cta*> ctas_;
  AgentId writer_ = kNoAgent;
};

// Arrives on its barriers when it has its turn: everything before it in the queue is complete. What comes behind it
// does not wait for arrivals at other CTAs, which travel.
class Commit final : public TensorCoreOperation {
 public:
  Commit(Step& s, std::vector<Cta*> ctas, uint32_t offset)
      : TensorCoreOperation(s), ctas_(std::move(ctas)), offset_(offset) {
    for (Cta* cta : ctas_) {
      if (cta->exited) throw Error("tcgen05.commit names a barrier of a CTA that has exited");
      ++cta->operations;
    }
  }

  bool step(Machine& machine) override {
    const AgentId agent = begin_step();
    std::vector<RemoteArrivals::Part> remote;
    for (Cta* cta : ctas_) {
      MBarrier& barrier = machine.mbarrier_of(*cta, offset_, *this);
      if (RaceDetector* races = cta->cluster->races.get()) races->arrive_engine(agent, barrier.clocks);
      if (cta == issuer || !machine.arrivals_travel()) {
        Arrival().land(machine, barrier);
      } else {
        remote.push_back({cta, offset_, Arrival()});
      }
      --cta->operations;
    }
    if (!remote.empty()) machine.send(std::make_unique<RemoteArrivals>(line, *issuer, std::move(remote)), *this);
    return true;
  }

 private:
  const std::vector<Cta*> ctas_;
  const uint32_t offset_;
};

enum MmaFlag : uint64_t { kAInTmem = 2, kNegatedEnable = 4, kKindShift = 8, kScaleShift = 16, kBlockShift = 24 };

// The address of scales; CUTLASS leaves their id in its highest two bits, as it does in the instruction descriptor.
uint32_t scales_address(uint32_t address, uint32_t id) {
  constexpr uint32_t kIdShift = 30;
  if (address >> kIdShift != 0 && address >> kIdShift != id)
    throw Error("tcgen05.mma: the address of scales names another id than the instruction descriptor");
  return address & ((1u << kIdShift) - 1);
}

// sources: d, a, b, instruction descriptor, addresses of scales (block-scaled kinds), enable; in.list: the
// disable-output-lane vector.
void multiply(Step& s, const Instruction& in) {
  const auto& operands = in.statement->operands;
  for (uint32_t i = 0; i < in.sources; ++i) check_use(s, in.s[i], "an operand of tcgen05.mma");
  for_lanes(s.active, [&](uint32_t lane) {
    Umma op;
    op.cta_group = in.detail & kPair ? 2 : 1;
    op.instruction = decode_umma_instruction(row32(s, in.s[3])[lane], UmmaKind(in.detail >> kKindShift & 255));
    op.d_address = uint32_t(row32(s, in.s[0])[lane] + operands[0].bits);
    op.a_in_tmem = in.detail & kAInTmem;
    if (op.a_in_tmem)
      op.a_address = uint32_t(row32(s, in.s[1])[lane] + operands[1].bits);
    else
      op.a = decode_umma_shared_descriptor(row64(s, in.s[1])[lane]);
    op.b = decode_umma_shared_descriptor(row64(s, in.s[2])[lane]);
    if (is_block_scaled(op.instruction.kind)) {
      op.block = uint32_t(in.detail >> kBlockShift & 255);
      const auto address = [&](size_t i) { return uint32_t(row32(s, in.s[i])[lane] + operands[i].bits); };
      op.sfa_address = scales_address(address(4), op.instruction.sfa_id);
      op.sfb_address = scales_address(address(5), op.instruction.sfb_id);
    }
    op.accumulate = (predicate(s, in.s[in.sources - 1]) >> lane & 1) != (in.detail & kNegatedEnable ? 1 : 0);
    op.fused_sum = s.machine.options().fused_sums;
    op.scale_input_d = uint32_t(in.detail >> kScaleShift & 255);
    for (size_t i = 0; i < in.list.size(); ++i) op.disable_output_lane[i] = row32(s, in.list[i])[lane];
    s.machine.issue(std::make_unique<Multiply>(s, std::move(op)), &s.cta.tensor_core);
  });
}

void copy_to_tmem(Step& s, const Instruction& in) {
  check_use(s, in.s[0], "an address");
  check_use(s, in.s[1], "a descriptor");
  for_lanes(s.active, [&](uint32_t lane) {
    const SharedMatrix source = decode_umma_shared_descriptor(row64(s, in.s[1])[lane]);
    const auto address = uint32_t(row32(s, in.s[0])[lane] + in.immediate);
    s.machine.issue(std::make_unique<Copy>(s, TmemCopyShape(in.target), source, address, in.detail & kPair ? 2 : 1),
                    &s.cta.tensor_core);
  });
}

void commit_mmas(Step& s, const Instruction& in) {
  check_use(s, in.s[0], "an address");
  for_lanes(s.active, [&](uint32_t lane) {
    const Location barrier = s.machine.locate_shared(s.cta, lane_address(s, in.s[0], in.immediate, lane), 8, 8);
    std::vector<Cta*> ctas{barrier.cta};
    if (in.sources > 1) {
      check_use(s, in.s[1], "a multicast mask");
      const uint32_t mask = uint32_t(lane_value(s, in.s[1], lane)) & 0xffff;
      Cluster& cluster = *s.cta.cluster;
      if (mask == 0 || mask >> cluster.size())
        throw Error("multicast mask " + std::to_string(mask) + " names CTAs that the cluster lacks");
      ctas.clear();
      for_lanes(mask, [&](uint32_t rank) { ctas.push_back(cluster.ctas.at(rank).get()); });
    }
    s.machine.issue(std::make_unique<Commit>(s, std::move(ctas), uint32_t(barrier.offset)), &s.cta.tensor_core);
  });
}

void access_operands(Decoder& d, size_t address, const Operand& registers, bool is_load) {
  static constexpr std::pair<std::string_view, TmemShape> kShapes[] = {{"32x32b", TmemShape::k32x32b},
                                                                       {"16x64b", TmemShape::k16x64b},
                                                                       {"16x128b", TmemShape::k16x128b},
                                                                       {"16x256b", TmemShape::k16x256b},
                                                                       {"16x32bx2", TmemShape::k16x32bx2}};
  const auto* shape =
      std::find_if(std::begin(kShapes), std::end(kShapes), [&](const auto& row) { return d.has(row.first); });
  uint32_t repeat = 0;
  for (uint32_t n = 1; n <= 128; n *= 2)
    if (d.has(std::string("x").append(std::to_string(n)))) repeat = n;
  if (shape == std::end(kShapes) || repeat == 0) d.fail("needs a shape and a repeat count");
  d.address(address, Space::kShared);
  const bool packed = d.has("pack::16b") || d.has("unpack::16b");
  d.out.detail = uint64_t(shape->second) | uint64_t{repeat} << 8 | uint64_t{packed} << 16;
  const std::vector<Operand> parts =
      registers.kind == Operand::Kind::kVector ? registers.parts : std::vector<Operand>{registers};
  if (shape->second == TmemShape::k16x32bx2) d.out.target = uint32_t(d.constant(is_load ? 2 : 1));
  for (const Operand& part : parts)
    d.out.list.push_back(is_load ? d.written(part, Type::k_b32) : d.read(part, Type::k_b32));
  if (parts.size() != tmem_register_count(access_of(d.out)))
    d.fail("needs " + std::to_string(tmem_register_count(access_of(d.out))) + " registers");
  d.out.flags |= kAligned;
}

// Elements of K that share a scale (PTX 9.7.16.10.9.1). A family target refuses .scale_vec, as ptxas does.
uint32_t scale_block(const Decoder& d, UmmaKind kind) {
  if (!d.has("block_scale")) d.fail("needs .block_scale");
  for (const std::string_view vector : {"scale_vec::1X", "scale_vec::2X", "scale_vec::4X"})
    if (d.has(vector) && d.rows.module.target.ends_with('f'))
      d.fail(std::string(vector) + " does not exist for " + d.rows.module.target + ": use block16 or block32");
  const bool of_16 = d.has("block16") || d.has("scale_vec::4X");
  const bool of_32 = d.has("block32") || d.has(kind == UmmaKind::kMxF8F6F4 ? "scale_vec::1X" : "scale_vec::2X");
  if (of_16 && (of_32 || kind != UmmaKind::kMxF4NvF4)) d.fail("blocks of 16 are kind::mxf4nvf4's");
  if (!of_16 && !of_32 && (kind == UmmaKind::kMxF4NvF4 || d.has("scale_vec::1X") || d.has("scale_vec::2X")))
    d.fail("needs the size of blocks that its kind has");
  return of_16 ? 16 : 32;
}

uint64_t pair_flag(const Decoder& d) {
  if (d.has("cta_group::1") == d.has("cta_group::2")) d.fail("needs .cta_group::1 or .cta_group::2");
  return d.bits_if("cta_group::2", kPair);
}

}  // namespace

void decode_tcgen05_alloc(Decoder& d) {
  d.out.detail = pair_flag(d);
  d.address(0, Space::kShared);
  d.source(1, Type::k_u32);
  d.out.flags |= kAligned | kMayPark;
  d.out.execute = allocate;
}
void decode_tcgen05_dealloc(Decoder& d) {
  d.out.detail = pair_flag(d);
  d.source(0, Type::k_b32);
  d.source(1, Type::k_u32);
  d.out.flags |= kAligned;
  d.out.execute = deallocate;
}
void decode_tcgen05_relinquish(Decoder& d) {
  pair_flag(d);
  d.out.flags |= kAligned;
  d.out.execute = relinquish;
}
void decode_tcgen05_ld(Decoder& d) {
  access_operands(d, 1, d.operand(0), true);
  d.out.execute = load_tmem;
}
void decode_tcgen05_st(Decoder& d) {
  access_operands(d, 0, d.operand(d.operands() - 1), false);
  d.out.execute = store_tmem;
}
void decode_tcgen05_wait(Decoder& d) {
  d.out.target = d.opcode.mnemonic == "tcgen05.wait::st";
  d.out.flags |= kAligned | kMayPark;
  d.out.execute = wait_registers;
}

void decode_tcgen05_mma(Decoder& d) {
  static constexpr std::pair<std::string_view, UmmaKind> kKinds[] = {
      {"kind::f16", UmmaKind::kF16},       {"kind::tf32", UmmaKind::kTf32},
      {"kind::f8f6f4", UmmaKind::kF8F6F4}, {"kind::mxf8f6f4", UmmaKind::kMxF8F6F4},
      {"kind::mxf4", UmmaKind::kMxF4},     {"kind::mxf4nvf4", UmmaKind::kMxF4NvF4}};
  const auto* kind =
      std::find_if(std::begin(kKinds), std::end(kKinds), [&](const auto& row) { return d.has(row.first); });
  if (kind == std::end(kKinds)) d.fail("needs a kind that is supported, any but i8");
  d.out.detail = pair_flag(d) | uint64_t(kind->second) << kKindShift;
  const auto tmem_address = [&](const Operand& operand) {
    if (operand.kind != Operand::Kind::kAddress) d.fail("needs a tensor memory address in []");
    d.source(operand.parts[0], Type::k_b32);
  };
  tmem_address(d.operand(0));
  if (d.operand(1).kind == Operand::Kind::kAddress) {
    d.out.detail |= kAInTmem;
    tmem_address(d.operand(1));
  } else {
    d.source(1, Type::k_b64);
  }
  d.source(2, Type::k_b64);
  d.source(3, Type::k_b32);
  size_t at = 4;
  if (is_block_scaled(kind->second)) {
    d.out.detail |= uint64_t{scale_block(d, kind->second)} << kBlockShift;
    tmem_address(d.operand(at++));
    tmem_address(d.operand(at++));
  } else if (d.has("block_scale")) {
    d.fail("needs a block-scaled kind");
  } else if (d.operand(at).kind == Operand::Kind::kVector) {
    const auto& lanes = d.operand(at).parts;
    if (lanes.size() != (d.out.detail & kPair ? 8u : 4u)) d.fail("needs 4 or, in pairs, 8 words of lanes to disable");
    for (const Operand& word : lanes) d.out.list.push_back(d.read(word, Type::k_b32));
    ++at;
  }
  Operand enable = d.operand(at++);
  if (enable.negated) d.out.detail |= kNegatedEnable;
  enable.negated = false;
  d.source(enable, Type::k_pred);
  if (at < d.operands()) d.out.detail |= (d.constant(at++) & 255) << kScaleShift;
  if (at != d.operands()) d.fail("has too many operands");
  d.out.execute = multiply;
}

void decode_tcgen05_cp(Decoder& d) {
  struct Row {
    std::string_view shape, multicast;
    TmemCopyShape value;
  };
  static constexpr Row kShapes[] = {{"128x256b", "", TmemCopyShape::k128x256b},
                                    {"4x256b", "", TmemCopyShape::k4x256b},
                                    {"128x128b", "", TmemCopyShape::k128x128b},
                                    {"64x128b", "warpx2::02_13", TmemCopyShape::k64x128bWarpx2_02_13},
                                    {"64x128b", "warpx2::01_23", TmemCopyShape::k64x128bWarpx2_01_23},
                                    {"32x128b", "warpx4", TmemCopyShape::k32x128bWarpx4}};
  const auto* row = std::find_if(std::begin(kShapes), std::end(kShapes), [&](const Row& r) {
    return d.has(r.shape) && (r.multicast.empty() || d.has(r.multicast));
  });
  if (row == std::end(kShapes)) d.fail("needs a shape");
  d.out.detail = pair_flag(d);
  d.out.target = uint32_t(row->value);
  d.address(0, Space::kShared);
  d.source(1, Type::k_b64);
  d.out.execute = copy_to_tmem;
}

void decode_tcgen05_commit(Decoder& d) {
  d.out.detail = pair_flag(d);
  d.address(0, Space::kShared);
  if (d.has("multicast::cluster"))
    d.source(1, Type::k_b16);
  else if (d.operands() > 1)
    d.fail("takes a mask with .multicast::cluster only");
  d.out.execute = commit_mmas;
}

}  // namespace jaxbw::emulator
