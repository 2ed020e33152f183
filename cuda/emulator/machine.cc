// The life of a launch: clusters, CTAs and warps start, run and end; addresses; findings.
// Which of the things that could happen does happen is in scheduler.cc.
//
// Longer than other files: the members of Machine that all instructions need.
#include "machine.h"

#include <algorithm>
#include <bit>
#include <cstdio>
#include <cstring>

namespace jaxbw::emulator {
namespace {

std::string hex(uint64_t value) {
  char text[24];
  std::snprintf(text, sizeof text, "0x%llx", static_cast<unsigned long long>(value));
  return text;
}

std::string text_of(Dim dim) {
  return "(" + std::to_string(dim.x) + "," + std::to_string(dim.y) + "," + std::to_string(dim.z) + ")";
}

void check_options(const Program& program, const LaunchOptions& options) {
  const auto divides = [](uint32_t a, uint32_t b) { return a != 0 && b % a == 0; };
  if (options.block.count() == 0 || options.block.count() > 1024) throw Error("launch: a block has 1 to 1024 threads");
  if (program.function->max_threads && options.block.count() > program.function->max_threads)
    throw Error("launch: block of " + std::to_string(options.block.count()) + " threads, but the kernel allows " +
                std::to_string(program.function->max_threads));
  if (options.grid.count() == 0 || options.grid.count() > (uint64_t{1} << 31)) throw Error("launch: bad grid");
  if (options.cluster.count() == 0 || options.cluster.count() > 16) throw Error("launch: a cluster has 1 to 16 CTAs");
  if (!divides(options.cluster.x, options.grid.x) || !divides(options.cluster.y, options.grid.y) ||
      !divides(options.cluster.z, options.grid.z))
    throw Error("launch: the grid is not a multiple of the cluster");
  if (options.sm_count < options.cluster.count()) throw Error("launch: sm_count is smaller than the cluster");
  if (program.shared_bytes + uint64_t{options.dynamic_shared} > kMaxSharedBytes)
    throw Error("launch: more than " + std::to_string(kMaxSharedBytes) + " bytes of shared memory");
}

}  // namespace

Operation::Operation(uint32_t line, Cta& issuer) : line(line), issuer(&issuer) { ++issuer.issued; }
Operation::~Operation() { --issuer->issued; }

const char* wait_name(Wait wait) {
  static constexpr const char* kNames[] = {
      "",           "convergence",     "mbarrier",    "named barrier", "cluster barrier",
      "bulk group", "tmem allocation", "tmem access", "wgmma"};
  return kNames[size_t(wait)];
}

Machine::Machine(const Program& program, const LaunchOptions& options, std::vector<Buffer> buffers,
                 std::vector<uint8_t> parameters)
    : program_(program),
      options_(options),
      buffers_(std::move(buffers)),
      parameters_(std::move(parameters)),
      random_(options.seed) {
  check_options(program, options);
  if (buffers_.empty()) buffers_.emplace_back();
  if (parameters_.size() != program.parameter_bytes)
    throw Error("launch: " + std::to_string(parameters_.size()) + " bytes of parameters, but the kernel takes " +
                std::to_string(program.parameter_bytes));
  cluster_count_ = options.grid.count() / options.cluster.count();
  next_cluster_ = options.first_cluster;
  resident_limit_ = uint32_t(options.sm_count / options.cluster.count());
  if (checking()) global_races_ = std::make_unique<GlobalRaces>();
  draw_schedule();
}

Machine::~Machine() = default;

void Machine::run() {
  fill();
  while (!clusters_.empty()) {
    choose_and_run();
    if (finished_) reclaim();
  }
  while (!pending_.empty()) step_queue(*pending_.front());  // stores that no thread waited for
  report_.steps = steps_;
}

// --- clusters

std::optional<Dim> Machine::take_cluster() {
  if (next_cluster_ >= cluster_count_) return std::nullopt;
  const uint64_t index = next_cluster_;
  next_cluster_ += options_.cluster_step;
  const uint32_t width = options_.grid.x / options_.cluster.x, height = options_.grid.y / options_.cluster.y;
  return Dim{uint32_t(index % width), uint32_t(index / width % height), uint32_t(index / width / height)};
}

void Machine::fill() {
  while (clusters_.size() < resident_limit_) {
    const auto id = take_cluster();
    if (!id) return;
    start_cluster(*id);
  }
}

void Machine::start_cluster(Dim id) {
  const Dim shape = options_.cluster;
  auto cluster = std::make_unique<Cluster>();
  cluster->id = id;
  cluster->number = uint32_t(report_.clusters_started);
  for (uint32_t rank = 0; rank < shape.count(); ++rank) {
    auto cta = std::make_unique<Cta>();
    cta->cluster = cluster.get();
    cta->rank = rank;
    cta->id = {id.x * shape.x + rank % shape.x, id.y * shape.y + rank / shape.x % shape.y,
               id.z * shape.z + rank / shape.x / shape.y};
    // What shared memory holds at first is unknown: the pattern is a NaN in every float format.
    cta->shared.assign(program_.shared_bytes + options_.dynamic_shared, 0xff);
    cta->undefined.assign(cta->shared.size(), 1);
    cta->live_threads = uint32_t(options_.block.count());
    cluster->live_threads += cta->live_threads;
    cluster->ctas.push_back(std::move(cta));
  }
  cluster->live_ctas = cluster->size();
  if (checking()) {
    // Agents: the warps of all CTAs, their tensor cores, their warpgroups.
    const uint32_t warps = uint32_t((options_.block.count() + kLanes - 1) / kLanes), groups = (warps + 3) / 4;
    const uint32_t ctas = cluster->size();
    cluster->races = std::make_unique<RaceDetector>(
        warps * ctas, (1 + groups) * ctas, std::vector<uint32_t>(ctas, uint32_t(cluster->ctas[0]->shared.size())),
        strict() ? RaceRules::kPtx : RaceRules::kHardware);
    started_.push_back(id);
    for (auto& cta : cluster->ctas) cta->tensor_core_agent = cluster->races->engine_agent(cta->rank);
  }
  clusters_.push_back(std::move(cluster));
  ++report_.clusters_started;
  for (auto& cta : clusters_.back()->ctas)
    for (uint32_t warp = 0; warp * kLanes < cta->live_threads; ++warp) start_warp(*cta, warp);
}

void Machine::start_warp(Cta& cta, uint32_t index) {
  auto warp = std::make_unique<Warp>();
  warp->cta = &cta;
  warp->index = index;
  const uint32_t threads = uint32_t(options_.block.count()) - index * kLanes;
  warp->live = threads >= kLanes ? kAllLanes : (1u << threads) - 1;
  warp->groups.push_back({.mask = warp->live, .pc = program_.begin});
  warp->storage.reset(new uint8_t[program_.file_bytes + kRowHeader]);
  warp->file = warp->storage.get() + (kRowHeader - reinterpret_cast<uintptr_t>(warp->storage.get()) % kRowHeader);
  std::memset(warp->file, 0xff, program_.file_bytes);  // an unlikely value
  warp->local.assign(size_t{kLanes} * program_.local_bytes, 0xff);
  for (const Reg reg : program_.rows)
    warp->state(reg) = {.undefined = kAllLanes,
                        .loads = 0,
                        .wgmma_writes = 0,
                        .wgmma_reads = 0,
                        .unwaited = {},
                        .load = 0,
                        .fences = 0};
  for (const Constant& constant : program_.constants) {
    for (uint32_t lane = 0; lane < kLanes; ++lane) {
      uint64_t value = constant.bits;
      if (constant.kind == Constant::Kind::kSharedAddress)
        value += kSharedBase + (cta.rank << kSharedRankShift);
      else if (constant.kind == Constant::Kind::kSpecial)
        value = special_value(constant.special, cta, index, lane);
      if (constant.reg.bytes == 8)
        reinterpret_cast<uint64_t*>(warp->file + constant.reg.at)[lane] = value;
      else if (constant.reg.bytes == 4)
        reinterpret_cast<uint32_t*>(warp->file + constant.reg.at)[lane] = uint32_t(value);
      else if (lane == 0)
        *reinterpret_cast<uint32_t*>(warp->file + constant.reg.at) = uint32_t(value);
    }
    warp->undefined(constant.reg) = 0;
  }
  if (cta.cluster->races)
    warp->agent =
        cta.cluster->races->warp_agent(cta.rank * uint32_t((options_.block.count() + kLanes - 1) / kLanes) + index);
  warp->number = ++warps_started_;
  assign_priority(warp->priority);
  make_runnable(*warp);
  cta.warps.push_back(std::move(warp));
}

// PTX 10. Values that differ between machines (clocks, SM numbers) are zero or read by an instruction of their own.
uint64_t Machine::special_value(const std::string& name, const Cta& cta, uint32_t warp, uint32_t lane) const {
  const Dim block = options_.block, grid = options_.grid, shape = options_.cluster;
  const uint32_t thread = warp * kLanes + lane;
  const auto component = [&](Dim dim) -> uint64_t {
    switch (name.back()) {
      case 'x':
        return dim.x;
      case 'y':
        return dim.y;
      case 'z':
        return dim.z;
    }
    throw Error("unknown special register '" + name + "'");
  };
  const std::string base = name.size() > 2 && name[name.size() - 2] == '.' ? name.substr(0, name.size() - 2) : name;
  if (base != name) {
    if (base == "%tid") return component({thread % block.x, thread / block.x % block.y, thread / block.x / block.y});
    if (base == "%ntid") return component(block);
    if (base == "%ctaid") return component(cta.id);
    if (base == "%nctaid") return component(grid);
    if (base == "%clusterid") return component(cta.cluster->id);
    if (base == "%nclusterid") return component({grid.x / shape.x, grid.y / shape.y, grid.z / shape.z});
    if (base == "%cluster_ctaid")
      return component({cta.rank % shape.x, cta.rank / shape.x % shape.y, cta.rank / shape.x / shape.y});
    if (base == "%cluster_nctaid") return component(shape);
  }
  if (name == "%laneid") return lane;
  if (name == "%warpid") return warp;
  if (name == "%nwarpid") return (block.count() + kLanes - 1) / kLanes;
  if (name == "%cluster_ctarank") return cta.rank;
  if (name == "%cluster_nctarank") return shape.count();
  if (name == "%is_explicit_cluster") return shape.count() > 1;
  if (name == "%dynamic_smem_size") return options_.dynamic_shared;
  if (name == "%total_smem_size" || name == "%aggr_smem_size") return cta.shared.size();
  if (name == "%nsmid") return options_.sm_count;
  if (name == "%smid") return cta.rank;
  if (name == "%gridid" || name.starts_with("%envreg")) return 0;
  if (name == "%lanemask_eq") return 1u << lane;
  if (name == "%lanemask_lt") return (1u << lane) - 1;
  if (name == "%lanemask_le") return (2u << lane) - 1;
  if (name == "%lanemask_gt") return ~((2u << lane) - 1);
  if (name == "%lanemask_ge") return ~((1u << lane) - 1);
  throw Error("unknown special register '" + name + "'");
}

void Machine::exit_lanes(Warp& warp, uint32_t lanes, uint32_t line) {
  Cta& cta = *warp.cta;
  const uint32_t count = uint32_t(__builtin_popcount(lanes));
  // The hardware keeps a CTA's memory until its bulk stores have read it.
  if (warp.bulk && strict()) {
    for_lanes(lanes, [&](uint32_t lane) {
      uint32_t reading = warp.bulk[lane].open ? warp.bulk[lane].open->reading : 0;
      for (const auto& group : warp.bulk[lane].committed) reading += group->reading;
      if (reading) finding("exit", cta, line, "a thread exits while its bulk store still reads shared memory");
    });
  }
  for_lanes(lanes, [&](uint32_t lane) {  // an exited thread is not expected, so its arrival must not count
    cta.cluster->barrier_arrived -= warp.cluster_phase[lane] == cta.cluster->barrier_phase + 1;
  });
  warp.live &= ~lanes;
  warp.exit_line = line;
  cta.live_threads -= count;
  cta.cluster->live_threads -= count;
  for (Group& group : warp.groups)
    if (group.wait == Wait::kConvergence) group.wait = Wait::kNone;  // fewer lanes to wait for
  check_named_barriers(cta);
  check_cluster_barrier(*cta.cluster);
  if (cta.live_threads == 0) retire(cta, line);
}

void Machine::retire(Cta& cta, uint32_t line) {
  cta.exited = true;
  if (checking()) {
    if (cta.operations)
      finding(
          "exit", cta, line,
          "the CTA exits with " + std::to_string(cta.operations) + " asynchronous operations in flight on its memory");
    if (cta.tmem && cta.tmem->allocator.columns_in_use())
      finding("tmem-leak", cta, line,
              "the CTA exits with " + std::to_string(cta.tmem->allocator.columns_in_use()) +
                  " Tensor Memory columns allocated");
  }
  if (--cta.cluster->live_ctas == 0) finished_ = true;
}

void Machine::reclaim() {
  finished_ = false;
  std::erase_if(clusters_, [&](const std::unique_ptr<Cluster>& cluster) {
    if (cluster->live_ctas) return false;
    for (const auto& cta : cluster->ctas)
      if (cta->issued || cta->operations) return finished_ = true, false;
    return true;
  });
  fill();
}

// --- barriers of a CTA and of a cluster

void Machine::check_cluster_barrier(Cluster& cluster) {
  if (cluster.barrier_arrived < cluster.live_threads || cluster.barrier_arrived == 0) return;
  cluster.barrier_arrived = 0;
  ++cluster.barrier_phase;
  cluster.barrier_clocks.finish_phase();
  wake(&cluster);
}

// A barrier without an explicit count waits for all threads that have not exited (PTX 9.7.13.1).
void Machine::check_named_barriers(Cta& cta) {
  for (NamedBarrier& barrier : cta.barriers) {
    if (!barrier.whole || barrier.arrived == 0) continue;
    barrier.expected = whole_warps(cta);
    if (barrier.arrived >= barrier.expected) complete(barrier);
  }
}

uint32_t Machine::whole_warps(const Cta& cta) const {
  uint32_t threads = 0;
  for (const auto& warp : cta.warps) threads += warp->live ? kLanes : 0;
  return threads;
}

void Machine::complete(NamedBarrier& barrier) {
  barrier.result = barrier.reduction;
  barrier.result_threads = barrier.reduction_threads;
  barrier.arrived = barrier.expected = barrier.reduction = barrier.reduction_threads = 0;
  ++barrier.generation;
  barrier.clocks.finish_phase();
  wake(&barrier);
}

void Machine::advance(MBarrier& barrier, const MBarrier::Change& change) {
  if (change.misuse)
    throw Error("mbarrier at offset " + hex(barrier.offset) + " of CTA rank " + std::to_string(barrier.rank) + ": " +
                change.misuse);
  trace_signal(barrier, int64_t(barrier.phase) - change.completed);
  if (!change.completed) return;
  trace_phase(barrier);
  wake(&barrier);
}

// --- addresses

uint8_t* Machine::find_global(uint64_t address, uint64_t bytes, bool write) {
  for (size_t i = 0; i < buffers_.size(); ++i) {
    const size_t index = (last_buffer_ + i) % buffers_.size();
    const Buffer& buffer = buffers_[index];
    if (address < buffer.address || address - buffer.address >= buffer.bytes.size()) continue;
    if (buffer.bytes.size() - (address - buffer.address) < bytes)
      throw Error("out-of-bounds access: " + std::to_string(bytes) + " bytes at " + hex(address) +
                  " run past the end of a buffer of " + std::to_string(buffer.bytes.size()) + " bytes");
    if (write && !buffer.writable) throw Error("write to a read-only buffer at " + hex(address));
    last_buffer_ = index;
    return buffer.bytes.data() + (address - buffer.address);
  }
  throw Error("out-of-bounds access: " + hex(address) + " is in no buffer");
}

Location Machine::locate_shared(Cta& from, uint64_t address, uint32_t bytes, uint32_t align) {
  if ((address & kWindowMask) == kSharedWindow) address &= ~kWindowMask;
  const uint64_t rank = address >> kSharedRankShift;
  const uint64_t offset = (address & kSharedOffsetMask) - kSharedBase;
  if (address % align)
    throw Error("misaligned access: shared address " + hex(address) + " is no multiple of " + std::to_string(align));
  if (rank >= from.cluster->size())
    throw Error("out-of-bounds access: shared address " + hex(address) + " names CTA rank " + std::to_string(rank));
  Cta& cta = *from.cluster->ctas[rank];
  if (offset >= cta.shared.size() || cta.shared.size() - offset < bytes)
    throw Error("out-of-bounds access: " + std::to_string(bytes) + " bytes at shared address " + hex(address) +
                "; a CTA has " + std::to_string(cta.shared.size()) + " bytes from " + hex(kSharedBase) + " on");
  if (cta.exited) throw Error("access to the shared memory of CTA rank " + std::to_string(rank) + ", which has exited");
  return {
      .bytes = cta.shared.data() + offset, .undefined = cta.undefined.data() + offset, .cta = &cta, .offset = offset};
}

Location Machine::locate(const Step& step, Space space, uint64_t address, uint32_t bytes, uint32_t lane, bool write) {
  if (space == Space::kGeneric) {
    switch (address & kWindowMask) {
      case kSharedWindow:
        space = Space::kShared;
        break;
      case kLocalWindow:
        space = Space::kLocal;
        break;
      case kParamWindow:
        space = Space::kParam;
        break;
      default:
        space = Space::kGlobal;
    }
  }
  if (address % bytes) throw Error("misaligned access: " + std::to_string(bytes) + " bytes at " + hex(address));
  switch (space) {
    case Space::kShared:
      return locate_shared(step.cta, address, bytes, bytes);
    case Space::kParam: {
      const uint64_t offset = (address & ~kWindowMask) - kParamBase;
      if (offset >= parameters_.size() || parameters_.size() - offset < bytes || write)
        throw Error("out-of-bounds access: parameter address " + hex(address));
      return {.bytes = parameters_.data() + offset};
    }
    case Space::kLocal: {
      const uint64_t offset = address & ~kWindowMask;
      if (offset >= program_.local_bytes || program_.local_bytes - offset < bytes)
        throw Error("out-of-bounds access: local address " + hex(address));
      return {.bytes = step.warp.local.data() + size_t{lane} * program_.local_bytes + offset};
    }
    default:
      return {.bytes = global_bytes(address, bytes, write), .global = address};
  }
}

MBarrier& Machine::mbarrier(const Location& location) {
  const auto it = location.cta->mbarriers.find(uint32_t(location.offset));
  if (it == location.cta->mbarriers.end())
    throw Error("there is no initialised mbarrier at offset " + hex(location.offset) + " of CTA rank " +
                std::to_string(location.cta->rank));
  return it->second;
}

MBarrier& Machine::mbarrier_of(Cta& cta, uint32_t offset, const Operation& operation) {
  MBarrier& barrier = mbarrier({.cta = &cta, .offset = offset});
  if (barrier.initialiser != kNoAgent)
    finding(
        "mbarrier", operation,
        "completes at a barrier whose mbarrier.init neither fence.mbarrier_init nor fence.proxy.async has followed");
  return barrier;
}

// --- findings

std::string Machine::place(const Cta& cta) const {
  std::string text = "CTA " + text_of(cta.id);
  if (cta.cluster->size() > 1) text += " rank " + std::to_string(cta.rank);
  return text;
}

void Machine::finding(const char* kind, const Cta& cta, uint32_t line, const std::string& message) {
  add_finding(kind, message, place(cta), line);
}

void Machine::finding(const char* kind, const Step& step, const std::string& message) {
  add_finding(kind, message, place(step.cta) + " warp " + std::to_string(step.warp.index), step.line);
}

void Machine::finding(const char* kind, const Operation& operation, const std::string& message) {
  add_finding(kind, message, place(*operation.issuer), operation.line);
}

// A kernel that is wrong at one place is wrong there many times, mostly in a row: those are counted, not listed.
bool Machine::count_again(const char* kind, uint32_t line, uint32_t other_line) {
  std::vector<Finding>& findings = report_.findings;
  const auto same = [&](const Finding& finding) {
    return finding.line == line && finding.other_line == other_line && finding.kind == kind;
  };
  if (last_counted_ >= findings.size() || !same(findings[last_counted_]))
    last_counted_ = size_t(std::find_if(findings.begin(), findings.end(), same) - findings.begin());
  if (last_counted_ == findings.size()) return false;
  ++findings[last_counted_].count;
  return true;
}

void Machine::add_finding(const char* kind, const std::string& message, const std::string& where, uint32_t line,
                          uint32_t other_line) {
  if (count_again(kind, line, other_line)) return;
  report_.findings.push_back({.kind = kind,
                              .message = message,
                              .where = where,
                              .source = program_.module->source_of(line),
                              .line = line,
                              .other_line = other_line});
  trace_finding(kind, line);
}

// --- races

std::string Machine::at_line(uint32_t line) const {
  const std::string source = program_.module->source_of(line);
  return " at line " + std::to_string(line) + (source.empty() ? "" : " (" + source + ")");
}

uint16_t Machine::issuer_of(const Operation& operation) const { return operation.issuer->warps[operation.warp]->agent; }

// `warp` counts those of the cluster.
std::string Machine::thread_of(Dim cluster, uint32_t warp, uint32_t lane) const {
  const Dim shape = options_.cluster;
  const auto warps = uint32_t((options_.block.count() + kLanes - 1) / kLanes), rank = warp / warps;
  const Dim cta = {cluster.x * shape.x + rank % shape.x, cluster.y * shape.y + rank / shape.x % shape.y,
                   cluster.z * shape.z + rank / shape.x / shape.y};
  return "CTA " + text_of(cta) + " warp " + std::to_string(warp % warps) +
         (lane < kLanes ? " lane " + std::to_string(lane) : "");
}

void Machine::add_race(const Cta& cta, const RaceDetector::Race& race, const std::string& memory) {
  const auto who = [&](const RaceDetector::Access& access) {
    const bool threads = access.agent == access.warp;
    return (threads ? "" : "an asynchronous operation of ") + thread_of(cta.cluster->id, access.warp, access.lane);
  };
  const std::string missing =
      race.misses_acquire
          ? " (a relaxed wait synchronises them, or one without tcgen05.fence::after_thread_sync behind it)"
      : race.misses_proxy_fence ? " (the accesses are synchronised, but a fence between their proxies is missing)"
                                : "";
  const std::string message = (race.now_writes ? "a write of " : "a read of ") + memory + " by " + who(race.now) +
                              " is not ordered after the " + (race.before_writes ? "write" : "read") + " by " +
                              who(race.before) + at_line(race.before.line) + missing;
  const auto warps = uint32_t(cta.warps.size());
  add_finding("race", message,
              place(*cta.cluster->ctas[race.now.warp / warps]) + " warp " + std::to_string(race.now.warp % warps),
              race.now.line, race.before.line);
}

void Machine::touch_shared(const Step& step, uint8_t lane, const Location& at, uint32_t bytes, bool write,
                           bool repeats) {
  if (!at.cta || !at.cta->cluster->races) return;
  const AgentId warp = step.warp.agent;
  if (const auto race = at.cta->cluster->races->shared(
          {.line = step.line, .lane = lane, .agent = warp, .repeats = repeats, .warp = warp}, write, at.cta->rank,
          uint32_t(at.offset), bytes))
    if (!known(*race)) add_race(*at.cta, *race, "shared memory at " + hex(kSharedBase + at.offset));
}

namespace {

// The lane of an operation, where one has issued it.
uint8_t lane_of(const Operation& operation) {
  return std::has_single_bit(operation.lanes) ? uint8_t(std::countr_zero(operation.lanes)) : kAnyLane;
}

}  // namespace

void Machine::touch_shared(const Operation& operation, AgentId agent, Cta& cta, uint32_t offset, uint32_t bytes,
                           bool write, Proxy proxy) {
  if (!cta.cluster->races) return;
  if (const auto race = cta.cluster->races->shared({.line = operation.line,
                                                    .lane = lane_of(operation),
                                                    .agent = agent,
                                                    .async = proxy == Proxy::kAsync,
                                                    .warp = issuer_of(operation)},
                                                   write, cta.rank, offset, bytes))
    if (!known(*race)) add_race(cta, *race, "shared memory at " + hex(kSharedBase + offset));
}

void Machine::touch_global(const Step& step, uint8_t lane, const Location& at, uint32_t bytes, bool write,
                           bool repeats) {
  if (!global_races_ || !at.global) return;
  const AgentId agent = step.warp.agent;
  check_global(step.cta,
               {.line = step.line, .writes = write, .repeats = repeats, .agent = agent, .warp = agent, .lane = lane},
               at.global, bytes);
}

void Machine::touch_global(const Operation& operation, AgentId agent, uint64_t address, uint32_t bytes,
                           BulkAccess access) {
  if (!global_races_) return;
  check_global(*operation.issuer,
               {.line = operation.line,
                .async = true,
                .strong = access.strong,
                .writes = access.writes,
                .repeats = access.repeats,
                .agent = agent,
                .warp = issuer_of(operation),
                .lane = lane_of(operation)},
               address, bytes);
}

void Machine::check_global(const Cta& cta, GlobalRaces::Access access, uint64_t address, uint32_t bytes) {
  access.cluster = cta.cluster->number;
  const auto before = global_races_->touch(*cta.cluster->races, access, address, bytes);
  if (!before || count_again("race", access.line, before->line)) return;
  const auto who = [&](const GlobalRaces::Access& each) {
    return (each.async ? "an asynchronous operation of " : "") +
           thread_of(started_[each.cluster], each.warp, each.lane);
  };
  add_finding("race",
              std::string(access.writes ? "a write" : "a read") + " of global memory at " + hex(address) + " by " +
                  who(access) + " is not ordered after the " + (before->writes ? "write" : "read") + " by " +
                  who(*before) + at_line(before->line),
              place(cta) + " warp " + std::to_string(access.warp % cta.warps.size()), access.line, before->line);
}

void Machine::touch_tensor(const Operation& operation, AgentId agent, Cta& cta, const TmemRegion& region, bool write) {
  if (!cta.cluster->races) return;
  constexpr uint32_t kHalfQuarter = 16;
  for (uint32_t half = region.lane / kHalfQuarter; half * kHalfQuarter < region.lane + region.lanes; ++half)
    if (const auto race = cta.cluster->races->tensor(
            {.line = operation.line, .lane = lane_of(operation), .agent = agent, .warp = issuer_of(operation)}, write,
            cta.rank, half, region.column, region.columns))
      if (!known(*race)) add_race(cta, *race, "Tensor Memory from column " + std::to_string(region.column) + " on");
}

void Machine::touch_tensor(const Step& step, const TmemRegion& region) {
  if (!step.cta.cluster->races) return;
  const AgentId warp = step.warp.agent;
  for (uint32_t half = 0; half < kTmemLanes / 16; ++half)
    if (const auto race = step.cta.cluster->races->tensor({.line = step.line, .agent = warp, .warp = warp}, true,
                                                          step.cta.rank, half, region.column, region.columns))
      if (!known(*race))
        add_race(step.cta, *race, "Tensor Memory from column " + std::to_string(region.column) + " on");
}

void release(const Step& step, SyncClocks& sync, bool relaxed) {
  const Cluster& cluster = *step.cta.cluster;
  if (!cluster.races) return;
  cluster.races->release(actor_of(step), sync, relaxed);
  step.machine.global_races()->sync_lanes(cluster.number, step.warp.agent);
}

// A waiter that has waited for phases up to p waits for the next one of the parity. If that is over, it sees the
// barrier in a later phase of the same parity, and may wait for ever.
std::string Machine::missed_phase(const Warp& warp, const Group& group) const {
  if (group.wait != Wait::kMBarrier) return {};
  const auto& barrier = *static_cast<const MBarrier*>(group.key);
  const auto found = barrier.waited.find(&warp);
  const uint64_t waited = found == barrier.waited.end() ? 0 : found->second[uint32_t(__builtin_ctz(group.mask))];
  if (waited == 0) return {};
  const uint64_t awaited = waited + ((waited & 1) != group.wait_parity);
  if (awaited >= barrier.phase) return {};
  return "; it has missed phase " + std::to_string(awaited) + ", which is over: phase " +
         std::to_string(barrier.phase) + " has the same parity";
}

std::string Machine::describe(const Warp& warp, const Group& group) const {
  std::string text = place(*warp.cta) + " warp " + std::to_string(warp.index) + " lanes " + hex(group.mask) +
                     " at line " + std::to_string(program_.code[group.pc].line) + " (" +
                     program_.code[group.pc].statement->opcode + "): ";
  switch (group.wait) {
    case Wait::kMBarrier: {
      const auto& barrier = *static_cast<const MBarrier*>(group.key);
      return text + "mbarrier at offset " + hex(barrier.offset) + " of rank " + std::to_string(barrier.rank) +
             ", waits for parity " + std::to_string(group.wait_parity) + " of phase " + std::to_string(barrier.phase) +
             ", pending arrivals " + std::to_string(barrier.pending) + " of " + std::to_string(barrier.count) +
             ", tx-count " + std::to_string(barrier.transactions) + missed_phase(warp, group);
    }
    case Wait::kNamedBarrier: {
      const auto& barrier = *static_cast<const NamedBarrier*>(group.key);
      return text + "barrier " + std::to_string(&barrier - warp.cta->barriers) + ", " +
             std::to_string(barrier.arrived) + " of " + std::to_string(barrier.expected) + " threads have arrived";
    }
    case Wait::kClusterBarrier:
      return text + "cluster barrier, " + std::to_string(warp.cta->cluster->barrier_arrived) + " of " +
             std::to_string(warp.cta->cluster->live_threads) + " threads have arrived";
    case Wait::kConvergence:
      return text + "waits for the other lanes of its warp (live: " + hex(warp.live) + ") to come to this instruction";
    case Wait::kTmemAllocation:
      return text + "waits for free Tensor Memory columns";
    default:
      return text + "waits for asynchronous operations";
  }
}

void Machine::deadlock() {
  constexpr uint32_t kMostShown = 64;
  std::string text = "deadlock: nothing can run, and nothing is under way. Waiting:", exited;
  uint32_t shown = 0;
  for (const auto& cluster : clusters_)
    for (const auto& cta : cluster->ctas)
      for (const auto& warp : cta->warps) {
        const std::string where = place(*cta) + " warp " + std::to_string(warp->index);
        for (const Group& group : warp->groups) {
          if (++shown <= kMostShown) text += "\n  " + describe(*warp, group);
          if (const std::string missed = missed_phase(*warp, group); checking() && !missed.empty())
            add_finding("mbarrier", "a waiter waits for ever" + missed, where, program_.code[group.pc].line);
        }
        if (warp->groups.empty() && ++shown <= kMostShown)
          exited += "\n  " + where + " at line " + std::to_string(warp->exit_line);
      }
  if (!exited.empty()) text += "\nExited:" + exited;
  if (shown > kMostShown) text += "\n  and " + std::to_string(shown - kMostShown) + " more";
  throw Error(text);
}

}  // namespace jaxbw::emulator
