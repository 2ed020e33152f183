// The emulated machine: grid, clusters, CTAs, warps, and the asynchronous engines beside them.
//
// One thread runs it. Whenever something could happen next in more than one order (which warp goes on, which
// asynchronous operation proceeds, and by how much), the schedule decides; so a launch is a function of its
// arguments, its schedule and its seed. Waiting warps park under a key and are woken by it: nothing polls.
// Over 400 lines: it is the state that all files of operations work on.
#pragma once

#include <cstdint>
#include <deque>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <random>
#include <span>
#include <string>
#include <unordered_map>
#include <vector>

#include "address.h"
#include "error.h"
#include "global_races.h"
#include "instruction.h"
#include "mbarrier.h"
#include "races.h"
#include "report.h"
#include "tmem.h"

namespace jaxbw::emulator {

class Machine;
struct Cta;
struct Cluster;
struct Warp;

// Dynamic and static, per CTA (PTX: 227 KB on sm_90 and sm_100).
constexpr uint32_t kMaxSharedBytes = 232448;

enum class Schedule : uint8_t { kEager, kLatest, kRandom, kPct, kHold };
enum class Checks : uint8_t { kStrict, kHardware, kOff };

struct Dim {
  uint32_t x = 1, y = 1, z = 1;
  uint64_t count() const { return uint64_t{x} * y * z; }
};

struct LaunchOptions {
  Dim grid, block, cluster;
  uint32_t dynamic_shared = 0;
  Schedule schedule = Schedule::kEager;
  uint64_t seed = 0;
  Checks checks = Checks::kStrict;
  uint32_t sm_count = 4;
  uint64_t step_limit = uint64_t{1} << 36;
  bool trace = false;       // remember events
  bool fused_sums = false;  // of wgmma and tcgen05.mma: as in fused_sum.h, not in float32
  // The clusters that this machine runs: the first, and every so many-th after it. Several machines, a thread each, so
  // share a grid whose clusters do not wait for each other; each one's cluster launch control hands out its own share.
  uint64_t first_cluster = 0, cluster_step = 1;
};

// Host memory that the kernel may address.
struct Buffer {
  uint64_t address = 0;
  std::span<uint8_t> bytes;
  bool writable = true;
};

// Bytes of some space, found by address. `undefined` is null where the space keeps no poison.
struct Location {
  uint8_t* bytes = nullptr;
  uint8_t* undefined = nullptr;
  Cta* cta = nullptr;   // of shared memory
  uint64_t offset = 0;  // in that CTA
  uint64_t global = 0;  // address, of global memory
};

// --- asynchronous operations

// Proceeds in steps that the schedule spreads over time. A step may have effects (a part of a copy, an arrival).
class Operation {
 public:
  Operation(uint32_t line, Cta& issuer);
  virtual ~Operation();
  Operation(const Operation&) = delete;
  Operation& operator=(const Operation&) = delete;
  virtual bool step(Machine& machine) = 0;  // true: complete

  const uint32_t line;
  Cta* const issuer;

  uint32_t warp = 0;   // of its CTA, that has issued it
  uint32_t lanes = 0;  // of it

  // For the trace.
  const Instruction* instruction = nullptr;
  uint64_t issued = 0, started = 0;  // ticks
  uint64_t number = 0;               // in order of issue, from 1
  uint64_t bytes = 0;
  std::array<uint32_t, 3> shape{};
};

// Operations that complete in order. Operations of different queues complete in any order.
struct Queue {
  std::deque<std::unique_ptr<Operation>> operations;
  int32_t slot = -1;  // in Machine::pending_
  int64_t priority = 0;
  bool temporary = false;  // made for one operation
};

// --- warps

enum class Wait : uint8_t {
  kNone,
  kConvergence,  // for other lanes of the warp to come to this instruction
  kMBarrier,
  kNamedBarrier,
  kClusterBarrier,
  kBulkGroup,
  kTmemAllocation,
  kTmemAccess,
  kWgmma,
};

const char* wait_name(Wait wait);

// Lanes that stand at one instruction.
struct Group {
  uint32_t mask = 0;
  uint32_t pc = 0;
  Wait wait = Wait::kNone;
  const void* key = nullptr;  // what wakes it
  uint64_t token = 0;         // of the handler that parked it: it runs again when woken
  bool arrived = false;       // the handler has registered the arrival that `token` stands for
  bool timed_out = false;     // its last try_wait returned false only because nothing else could run
  bool apart = false;         // parted from lanes that wait here for something else: not to be joined before it has run
  uint32_t wait_parity = 0;
  uint64_t parked = 0;  // tick
};

// Bulk asynchronous groups of one thread (PTX 9.7.9.25.2).
struct BulkGroup {
  uint32_t reading = 0, writing = 0;  // operations that still read their source, that have not completed
  // What the race detector knows of an operation. It may stand for the same store of several threads, and is in a group
  // of each: what it reads and writes is known to be over when the last of them has waited.
  struct Agent {
    AgentId id;
    uint32_t reads;                    // its time while it reads its source; it writes later
    uint32_t read_unwaited, unwaited;  // threads that have not waited for it to have read, to be complete
  };
  std::vector<std::shared_ptr<Agent>> agents;
  bool read_waited = false;  // its thread knows that they have read their source
};
struct BulkGroups {
  VectorClock forgotten;  // complete, but only waits with .read have covered them
  std::shared_ptr<BulkGroup> open;
  std::deque<std::shared_ptr<BulkGroup>> committed;
};

struct Warp {
  Cta* cta = nullptr;
  uint32_t index = 0;  // in the CTA
  AgentId agent = kNoAgent;
  uint32_t live = 0;       // lanes that have not exited
  uint32_t exit_line = 0;  // where the last of the others did
  std::vector<Group> groups;
  std::unique_ptr<uint8_t[]> storage;
  uint8_t* file = nullptr;
  uint32_t carry = 0;  // CC.CF of each lane
  uint32_t picks = 0;
  uint64_t number = 0;  // in order of their start, from 1
  int32_t slot = -1;    // in Machine::runnable_
  int64_t priority = 0;
  uint32_t cluster_phase[kLanes] = {};  // phase of the cluster barrier that a lane has yet to wait for, plus one, or 0
  std::unique_ptr<BulkGroups[]> bulk;   // per lane, made when needed
  std::vector<uint8_t> local;           // kLanes x Program::local_bytes
  Queue copies;                         // cp.async
  Queue arrivals;                       // at mbarriers of other CTAs
  uint64_t copies_issued = 0, copies_complete = 0;
  Clocks copied;                             // what is known of those that are complete
  std::deque<uint64_t> copy_groups;          // `copies_issued` at each commit
  uint32_t in_flight = 0;                    // operations that own rows of the register file
  uint32_t fences = 0;                       // wgmma.fence that it has executed
  uint32_t tmem_loads = 0, tmem_stores = 0;  // outstanding
  std::vector<Reg> unwaited;                 // rows that are so, each at least once
  // Of tcgen05.ld and of st that no wait has covered.
  struct TmemAgent {
    AgentId id;
    uint32_t number;  // of the load or store, in the warp
  };
  std::vector<TmemAgent> tmem_agents[2];
  uint32_t tmem_issued = 0;

  RowState& state(Reg reg) { return *reinterpret_cast<RowState*>(file + reg.at - kRowHeader); }
  uint32_t& undefined(Reg reg) { return state(reg).undefined; }
  bool runnable() const;
};

struct NamedBarrier {
  uint32_t expected = 0;  // threads; 0 = no arrival in this generation yet
  uint32_t arrived = 0;
  bool whole = false;  // expects every warp of the CTA that still lives
  uint64_t generation = 1;
  uint32_t reduction = 0, reduction_threads = 0;  // of bar.red: so far, and of the generation before
  uint32_t result = 0, result_threads = 0;
  SyncClocks clocks;
  std::vector<const void*> arrivals,
      waiters;  // warps of this generation, where phases are checked; the second are among the first
};

// Tensor Memory of a CTA.
struct CtaTmem {
  TensorMemory memory;
  std::vector<uint8_t> undefined = std::vector<uint8_t>(kTmemLanes * kTmemColumns, 1);  // by cell, lane-major
  // Operations under way that write a cell, by half quarter of the lanes and column.
  std::vector<uint16_t> pending = std::vector<uint16_t>(kTmemLanes / 16 * kTmemColumns);
  TmemAllocator allocator;
  // Of tcgen05.alloc.cta_group::2, which both CTAs of a pair issue: the columns that this one has asked for, and the
  // address that the other one's issue has given it.
  std::optional<uint32_t> asked, given;
};

class WgmmaOperation;  // wgmma_ops.cc

// Four consecutive warps, that issue wgmma together: an operation starts when all four have issued it.
struct Warpgroup {
  Queue queue;
  AgentId agent = kNoAgent;
  std::deque<std::shared_ptr<WgmmaOperation>> issued;  // not complete yet
  uint64_t first = 0;                                  // number of the first of them
  uint64_t next[4] = {};                               // number of the operation that each warp issues next
  std::deque<uint64_t> groups[4];                      // by warp: `next` at each commit
};

struct Cta {
  Cluster* cluster = nullptr;
  uint32_t rank = 0;
  Dim id;
  std::vector<uint8_t> shared, undefined;
  std::map<uint32_t, MBarrier> mbarriers;  // by offset
  NamedBarrier barriers[16];
  std::vector<std::unique_ptr<Warp>> warps;
  uint32_t live_threads = 0;
  uint32_t operations = 0;  // asynchronous operations in flight that touch its memory, but for bulk stores' reads
  bool exited = false;
  bool heard_of_cluster = false;  // another CTA has arrived at one of its mbarriers
  Queue tensor_core;
  AgentId tensor_core_agent = kNoAgent;
  std::unique_ptr<CtaTmem> tmem;  // made by the first allocation
  std::vector<std::unique_ptr<Warpgroup>> warpgroups;
  uint32_t issued = 0;  // asynchronous operations that name it as their issuer
};

struct Cluster {
  Dim id;
  uint32_t number = 0;  // in order of their start
  std::vector<std::unique_ptr<Cta>> ctas;
  uint32_t live_ctas = 0;
  uint32_t live_threads = 0;
  uint64_t barrier_phase = 0;
  uint32_t barrier_arrived = 0;
  SyncClocks barrier_clocks;
  std::unique_ptr<RaceDetector> races;  // null: not checked
  bool clc_refused = false;             // a request of this cluster was refused
  bool clc_refusal_observed = false;    // and a thread knows

  uint32_t size() const { return uint32_t(ctas.size()); }
};

// --- one execution of one instruction by a group of lanes

struct Step {
  Machine& machine;
  Warp& warp;
  Cta& cta;
  Group& group;
  uint8_t* file;
  uint32_t active;  // lanes whose guard holds
  uint32_t next;    // pc of those lanes
  enum class Outcome : uint8_t { kNext, kDiverge, kPark, kYield, kExit } outcome = Outcome::kNext;
  // kDiverge: the lanes of `taken` go to `next`, the other lanes of the group to `other`.
  uint32_t taken = 0, other = 0;
  uint32_t line = 0;

  void park(Wait wait, const void* key);
  // These lanes go on at `target`, the others of the group at `rest`.
  void branch(uint32_t lanes, uint32_t target, uint32_t rest);
};

class Machine {
 public:
  Machine(const Program& program, const LaunchOptions& options, std::vector<Buffer> buffers,
          std::vector<uint8_t> parameters);
  ~Machine();

  // Runs the grid to its end. Throws Error on a fault (illegal access, deadlock, ...).
  void run();

  Report& report() { return report_; }
  const Program& program() const { return program_; }
  const LaunchOptions& options() const { return options_; }
  bool checking() const { return options_.checks != Checks::kOff; }
  bool strict() const { return options_.checks == Checks::kStrict; }
  bool eager() const { return options_.schedule == Schedule::kEager; }
  uint64_t steps() const { return steps_; }
  uint64_t ticks() const { return ticks_; }
  double random_unit() { return std::uniform_real_distribution<>()(random_); }

  // Asynchronous operations. `queue` null: unordered with all others.
  void issue(std::unique_ptr<Operation> operation, Queue* queue = nullptr);
  // Goes on from an operation that takes its step: unordered with all others.
  void send(std::unique_ptr<Operation> operation, const Operation& from);
  // Whether arrivals at other CTAs take their time; in a trace they stand where they were sent.
  bool arrivals_travel() const { return !eager() && !options_.trace; }
  void land_arrivals(Warp& warp);  // behind a release at cluster scope, they are no longer on their way
  // How many of `parts` an operation should do in this step.
  uint32_t part(uint32_t parts);
  // Counts an operation of the warp that runs. issue() does it for its operations.
  void count(const Instruction& instruction) {
    ++report_.warp_operations[acting_.warp->index][instruction.statement->opcode];
  }

  // Waiting.
  void park(Warp& warp, const void* key) { sleepers_[key].push_back(&warp); }
  void wake(const void* key);
  void make_runnable(Warp& warp);

  // Addresses. Throws on out-of-bounds or misaligned accesses; the message has no place yet.
  Location locate(const Step& step, Space space, uint64_t address, uint32_t bytes, uint32_t lane, bool write);
  Location locate_shared(Cta& from, uint64_t address, uint32_t bytes, uint32_t align);
  uint8_t* global_bytes(uint64_t address, uint64_t bytes, bool write) {
    const Buffer& last = buffers_[last_buffer_];  // most accesses go where the one before went
    const uint64_t offset = address - last.address, size = last.bytes.size();
    if (offset < size && size - offset >= bytes && (last.writable || !write)) return last.bytes.data() + offset;
    return find_global(address, bytes, write);
  }
  std::span<const uint8_t> parameters() const { return parameters_; }
  MBarrier& mbarrier(const Location& location);
  MBarrier& mbarrier_of(Cta& cta, uint32_t offset, const Operation& operation);  // for an asynchronous operation
  void advance(MBarrier& barrier, const MBarrier::Change& change);  // after an arrival: wakes if the phase is over

  // Findings: what a kernel does wrong without making it impossible to go on.
  void finding(const char* kind, const Step& step, const std::string& message);
  void finding(const char* kind, const Operation& operation, const std::string& message);
  void finding(const char* kind, const Cta& cta, uint32_t line, const std::string& message);

  // Accesses, for the race detector of the cluster.
  // `repeats`: the write finds its bytes already there.
  void touch_shared(const Step& step, uint8_t lane, const Location& at, uint32_t bytes, bool write,
                    bool repeats = false);
  void touch_shared(const Operation& operation, AgentId agent, Cta& cta, uint32_t offset, uint32_t bytes, bool write,
                    Proxy proxy = Proxy::kAsync);
  void touch_global(const Step& step, uint8_t lane, const Location& at, uint32_t bytes, bool write,
                    bool repeats = false);
  struct BulkAccess {
    bool writes = false;
    bool strong = false;  // a reduction, whose parts are relaxed at gpu scope (PTX 9.7.9.25.4.2)
    bool repeats = false;
  };
  void touch_global(const Operation& operation, AgentId agent, uint64_t address, uint32_t bytes, BulkAccess access);
  GlobalRaces* global_races() { return global_races_.get(); }  // null: not checked
  void touch_tensor(const Operation& operation, AgentId agent, Cta& cta, const TmemRegion& region, bool write);
  void touch_tensor(const Step& step, const TmemRegion& region);  // dealloc: as if it wrote the columns

  // A wait is over: for the trace. `barrier` null: not for an mbarrier; `left`: operations that may go on.
  void trace_pass(const Step& step, const MBarrier* barrier, uint64_t left = 0);

  // Barriers whose expectation sinks when threads exit.
  void check_cluster_barrier(Cluster& cluster);
  void check_named_barriers(Cta& cta);
  void complete(NamedBarrier& barrier);
  uint32_t whole_warps(const Cta& cta) const;  // threads, a warp counted whole while any lane of it lives

  // Hands out the next cluster that has not started, to a CLC request or to a free SM.
  std::optional<Dim> take_cluster();
  bool refuse_clc();
  bool gives_up_early();  // whether a try_wait returns false before its time

 private:
  uint8_t* find_global(uint64_t address, uint64_t bytes, bool write);
  void fill();  // starts clusters while SMs are free
  void start_cluster(Dim id);
  void start_warp(Cta& cta, uint32_t index);
  uint64_t special_value(const std::string& name, const Cta& cta, uint32_t warp, uint32_t lane) const;
  void run_warp(Warp& warp, uint32_t budget);
  bool execute(Warp& warp, size_t group_index, uint32_t& budget);
  size_t pick_group(Warp& warp);
  bool merge(Warp& warp, size_t group_index);
  void exit_lanes(Warp& warp, uint32_t lanes, uint32_t line);
  void retire(Cta& cta, uint32_t line);
  bool release_timeouts();
  void reclaim();
  void draw_schedule();
  void assign_priority(int64_t& priority);
  bool count_again(const char* kind, uint32_t line, uint32_t other_line);
  void add_finding(const char* kind, const std::string& message, const std::string& where, uint32_t line,
                   uint32_t other_line = 0);
  // Kernels may race a million times: words are found for the first only.
  bool known(const RaceDetector::Race& race) { return count_again("race", race.now.line, race.before.line); }
  void add_race(const Cta& cta, const RaceDetector::Race& race, const std::string& memory);
  std::string at_line(uint32_t line) const;
  uint16_t issuer_of(const Operation& operation) const;
  std::string thread_of(Dim cluster, uint32_t warp, uint32_t lane) const;
  [[noreturn]] void deadlock();
  void enqueue(std::unique_ptr<Operation> operation, Queue* queue);
  void step_queue(Queue& queue);
  bool step(Operation& operation);
  void trace_run(const Warp& warp, uint64_t begin);
  void trace_wait(const Warp& warp, const Group& group);
  void trace_operation(const Operation& operation);
  void trace_phase(const MBarrier& barrier);
  void trace_signal(const MBarrier& barrier, int64_t phase);
  void trace_finding(const char* kind, uint32_t line);
  Event event_of(Event::Kind kind, const Cta& cta, uint64_t begin) const;
  void remove_pending(Queue& queue);
  void remove_runnable(Warp& warp);
  void check_global(const Cta& cta, GlobalRaces::Access access, uint64_t address, uint32_t bytes);
  std::string place(const Cta& cta) const;
  std::string describe(const Warp& warp, const Group& group) const;
  std::string missed_phase(const Warp& warp, const Group& group) const;  // empty: it has missed none
  void choose_and_run();
  void run_unheld();
  bool stalls(Step& step, const Instruction& instruction);
  void load_is_over(Warp& warp, uint32_t number);

  const Program& program_;
  const LaunchOptions options_;
  std::vector<Buffer> buffers_;
  std::vector<uint8_t> parameters_;
  Report report_;
  size_t last_counted_ = 0;  // of its findings
  std::mt19937_64 random_;

  std::vector<std::unique_ptr<Cluster>> clusters_;
  std::unique_ptr<GlobalRaces> global_races_;
  std::vector<Dim> started_;  // by number of the cluster; only for findings of global_races_
  std::vector<Warp*> runnable_;
  std::vector<Queue*> pending_;
  std::vector<std::unique_ptr<Queue>> temporary_;
  std::unordered_map<const void*, std::vector<Warp*>> sleepers_;
  uint64_t next_cluster_ = 0, cluster_count_ = 0;
  uint32_t resident_limit_ = 1;
  uint64_t steps_ = 0;
  uint64_t ticks_ = 0;   // instructions, and steps of operations
  uint64_t issued_ = 0;  // operations
  uint64_t warps_started_ = 0;
  // Who causes what happens now: an instruction of a warp, or an operation.
  struct {
    const Warp* warp = nullptr;
    const Instruction* instruction = nullptr;
    const Operation* operation = nullptr;
    uint32_t lanes = 0;
  } acting_;
  size_t cursor_ = 0;
  size_t last_buffer_ = 0;

  // How this run's random schedule behaves, drawn from the seed.
  uint32_t quantum_ = 4096;
  double engine_bias_ = 0.5;
  uint32_t part_limit_ = 1;
  double refusal_ = 0;
  uint64_t held_warp_ = 0, held_operation_ = 0;  // by number; goes on only when nothing else can
  double divergence_ = 0;  // how often the lanes of a warp part for no reason (PTX 9.7.12: they may at any time)
  bool preempt_ = false;
  bool finished_ = false;      // a cluster may have come to its end
  uint64_t since_engine_ = 0;  // instructions since an asynchronous operation last went on
  uint64_t naps_ = 0;          // turns since then, or since one that did not, that ended with nanosleep
  int64_t lowest_priority_ = 0;
};

// Who acts in this step, to the race detectors.
inline Actor actor_of(const Step& step) {
  return {step.warp.agent, step.active == 1 && step.warp.live != 1 ? Lanes::kFirst : Lanes::kAll};
}
// What the lanes that act hand on by an arrival.
void release(const Step& step, SyncClocks& sync, bool relaxed);

inline void Step::park(Wait wait, const void* key) {
  group.wait = wait;
  group.key = key;
  group.parked = machine.ticks();
  outcome = Outcome::kPark;
}

inline void Step::branch(uint32_t lanes, uint32_t target, uint32_t rest) {
  next = target;
  if (lanes == group.mask) return;
  outcome = Outcome::kDiverge;
  taken = lanes;
  other = rest;
}

// --- rows

inline uint32_t* row32(Step& s, Reg reg) { return reinterpret_cast<uint32_t*>(s.file + reg.at); }
inline uint64_t* row64(Step& s, Reg reg) { return reinterpret_cast<uint64_t*>(s.file + reg.at); }
inline uint32_t& predicate(Step& s, Reg reg) { return *row32(s, reg); }
inline uint32_t& undefined(Step& s, Reg reg) { return s.warp.undefined(reg); }

inline uint64_t lane_value(Step& s, Reg reg, uint32_t lane) {
  return reg.bytes == 8 ? row64(s, reg)[lane] : reg.bytes == 0 ? predicate(s, reg) >> lane & 1 : row32(s, reg)[lane];
}
inline void set_lane(Step& s, Reg reg, uint32_t lane, uint64_t value) {
  if (reg.bytes == 8)
    row64(s, reg)[lane] = value;
  else
    row32(s, reg)[lane] = uint32_t(value);
}
// The lanes written become defined, but for those of `poison`.
inline void mark_written(Step& s, Reg reg, uint32_t lanes, uint32_t poison = 0) {
  uint32_t& mask = undefined(s, reg);
  mask = (mask & ~lanes) | (poison & lanes);
}

template <class F>
void for_lanes(uint32_t mask, F f) {
  for (; mask; mask &= mask - 1) f(uint32_t(__builtin_ctz(mask)));
}

}  // namespace jaxbw::emulator
