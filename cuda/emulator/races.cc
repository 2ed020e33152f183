#include "races.h"

#include <algorithm>
#include <bit>

namespace jaxbw::emulator {
namespace {

constexpr uint32_t kCellBytes = 4;
constexpr uint32_t kHalfQuarters = 8;
constexpr uint32_t kColumns = 512;
// Slots for operations in flight are used again as late as possible: an operation cannot be told from an earlier one of
// its slot.
constexpr uint32_t kFreeSlots = 64;

}  // namespace

void VectorClock::join(const VectorClock& other, AgentId first) {
  if (times_.size() < other.times_.size()) times_.resize(other.times_.size());
  for (size_t i = first; i < other.times_.size(); ++i) times_[i] = std::max(times_[i], other.times_[i]);
}

VectorClock VectorClock::least(const VectorClock& a, const VectorClock& b) {
  VectorClock out(std::min(a.times_.size(), b.times_.size()));
  for (size_t i = 0; i < out.times_.size(); ++i) out.times_[i] = std::min(a.times_[i], b.times_[i]);
  return out;
}

void SyncClocks::finish_phase() {
  complete.seen.join(arriving.seen);
  complete.fenced.join(arriving.fenced);
  complete.tmem.join(arriving.tmem);
}

RaceDetector::RaceDetector(uint32_t warps, uint32_t engines, const std::vector<uint32_t>& shared_bytes)
    : warps_(warps),
      engines_(engines),
      clocks_(warps + engines),
      issued_(engines),
      released_(warps),
      unacquired_(warps),
      published_(warps),
      received_(warps),
      behind_fence_(warps) {
  for (AgentId agent = 0; agent < clocks_.size(); ++agent) clocks_[agent].seen.set(agent, 1);
  for (const uint32_t bytes : shared_bytes) {
    shared_.emplace_back((bytes + kCellBytes - 1) / kCellBytes);
    tensor_.emplace_back(kHalfQuarters * kColumns);
  }
}

// --- threads

void RaceDetector::release(AgentId warp, SyncClocks& sync, bool relaxed) {
  Clocks& own = clocks_[warp];
  const AgentId first = relaxed ? AgentId(warps_) : AgentId(0);
  sync.arriving.seen.join(own.seen, first);
  sync.arriving.fenced.join(own.fenced, first);
  sync.arriving.seen.join(released_[warp].seen);
  sync.arriving.fenced.join(released_[warp].fenced);
  sync.arriving.tmem.join(published_[warp]);
  own.seen.set(warp, own.seen[warp] + 1);
}

void RaceDetector::acquire(AgentId warp, const SyncClocks& sync, bool relaxed) {
  Clocks& own = clocks_[warp];
  const AgentId first = relaxed ? AgentId(warps_) : AgentId(0);
  own.seen.join(sync.complete.seen, first);
  own.fenced.join(sync.complete.fenced, first);
  received_[warp].tmem.join(sync.complete.tmem);
  if (!relaxed) {
    own.read.join(sync.complete.seen);
    received_[warp].tmem_read.join(sync.complete.tmem);
  }
  unacquired_[warp].seen.join(sync.complete.seen);
  unacquired_[warp].fenced.join(sync.complete.fenced);
}

void RaceDetector::fence_release(AgentId warp) {
  released_[warp].seen = clocks_[warp].seen;
  released_[warp].fenced = clocks_[warp].fenced;
  clocks_[warp].seen.set(warp, clocks_[warp].seen[warp] + 1);
}

void RaceDetector::fence_acquire(AgentId warp) {
  clocks_[warp].seen.join(unacquired_[warp].seen);
  clocks_[warp].fenced.join(unacquired_[warp].fenced);
  clocks_[warp].read.join(unacquired_[warp].seen);
}

void RaceDetector::fence_tmem_before(AgentId warp) { published_[warp].join(clocks_[warp].tmem); }

void RaceDetector::fence_tmem_after(AgentId warp) {
  Clocks& own = clocks_[warp];
  own.tmem.join(received_[warp].tmem);
  own.tmem_read.join(received_[warp].tmem_read);
  behind_fence_[warp].seen = own.seen;
  behind_fence_[warp].fenced = own.fenced;
  behind_fence_[warp].read = own.read;
}

// --- asynchronous operations

AgentId RaceDetector::begin_operation(AgentId issuer) {
  AgentId agent;
  if (free_.size() > kFreeSlots) {
    agent = free_.front();
    free_.pop_front();
  } else {
    agent = AgentId(clocks_.size());
    clocks_.emplace_back();
  }
  const uint32_t time = clocks_[agent].seen[agent] + 1;
  clocks_[agent] = clocks_[issuer];
  clocks_[agent].seen.set(agent, time);
  clocks_[issuer].seen.set(issuer, clocks_[issuer].seen[issuer] + 1);  // what other lanes still do comes after it
  return agent;
}

Clocks RaceDetector::issue_to_engine(AgentId engine, AgentId issuer) { return enqueue(engine, clocks_[issuer]); }

Clocks RaceDetector::issue_to_tensor_core(AgentId engine, AgentId issuer) {
  const Clocks& own = clocks_[issuer];
  Clocks known = behind_fence_[issuer];
  known.seen.set(issuer, own.seen[issuer]);
  known.fenced.set(issuer, own.fenced[issuer]);
  known.tmem = own.tmem;
  known.tmem_read = own.tmem_read;
  return enqueue(engine, known);
}

Clocks RaceDetector::enqueue(AgentId engine, const Clocks& known) {
  Clocks& queue = issued_[engine - warps_];
  queue.seen.join(known.seen);
  queue.fenced.join(known.fenced);
  queue.tmem.join(known.tmem);
  queue.read.join(known.read);
  queue.tmem_read.join(known.tmem_read);
  return queue;
}

void RaceDetector::begin_engine_step(AgentId engine, const Clocks& known) {
  const uint32_t time = clocks_[engine].seen[engine] + 1;
  clocks_[engine] = known;
  clocks_[engine].seen.set(engine, time);
}

void RaceDetector::observe(AgentId warp, AgentId operation) { observe(warp, operation, time(operation)); }

void RaceDetector::observe(AgentId warp, AgentId operation, uint32_t time) {
  Clocks& own = clocks_[warp];
  for (VectorClock* clock : {&own.seen, &own.fenced, &own.tmem, &own.read, &own.tmem_read})
    clock->set(operation, std::max(time, (*clock)[operation]));
}

void RaceDetector::observe(AgentId warp, const VectorClock& operations) {
  Clocks& own = clocks_[warp];
  for (VectorClock* clock : {&own.seen, &own.fenced, &own.tmem, &own.read, &own.tmem_read}) clock->join(operations);
}

// What asynchronous operations knew of each other goes on with them; what threads wrote does not.
void RaceDetector::end_operation(AgentId operation, SyncClocks& sync) {
  const auto first = AgentId(warps_);
  sync.arriving.seen.join(clocks_[operation].seen, first);
  sync.arriving.fenced.join(clocks_[operation].seen, first);
}

void RaceDetector::arrive_engine(AgentId engine, SyncClocks& sync) {
  end_operation(engine, sync);
  // commit implies fence::before_thread_sync (PTX 9.7.16.12.1).
  sync.arriving.tmem.join(clocks_[engine].tmem);
  sync.arriving.tmem.set(engine, std::max(sync.arriving.tmem[engine], clocks_[engine].seen[engine]));
}

// --- accesses

bool RaceDetector::ordered(const Access& before, bool before_writes, AgentId agent, Proxy proxy, bool write,
                           bool tensor) const {
  if (before.agent == kNoAgent || before.agent == agent) return true;
  const Clocks& own = clocks_[agent];
  const bool crosses = before.proxy == Proxy::kGeneric && proxy == Proxy::kAsync;
  const bool reads_result = before_writes && !write && before.proxy == Proxy::kAsync;
  const VectorClock& clock = tensor         ? (reads_result ? own.tmem_read : own.tmem)
                             : crosses      ? own.fenced
                             : reads_result ? own.read
                                            : own.seen;
  return before.time <= clock[before.agent];
}

std::string RaceDetector::describe(const Access& before, bool before_writes, const Access& now, bool now_writes) const {
  const auto who = [&](const Access& access) {
    return access.agent < warps_              ? std::string("warp ") + std::to_string(access.agent) + " of the cluster"
           : access.agent < warps_ + engines_ ? std::string("a tensor core")
                                              : std::string("an asynchronous operation");
  };
  const bool known = before.time <= clocks_[now.agent].seen[before.agent];
  return std::string(now_writes ? "a write" : "a read") + " by " + who(now) + " is not ordered after the " +
         (before_writes ? "write" : "read") + " by " + who(before) + " at line " + std::to_string(before.line) +
         (!known ? ""
          : before.proxy == now.proxy
              ? " (a relaxed wait synchronises them, or one without tcgen05.fence::after_thread_sync behind it)"
              : " (the accesses are synchronised, but a fence between their proxies is missing)");
}

void RaceDetector::check(Cell& cell, uint64_t key, const Access& access, bool write, bool tensor, std::string& race) {
  const auto conflict = [&](const Access& before, bool before_writes) {
    if (race.empty() && !ordered(before, before_writes, access.agent, access.proxy, write, tensor))
      race = describe(before, before_writes, access, write);
  };
  conflict(cell.write, true);
  if (!write) {
    if (cell.read.agent == access.agent || ordered(cell.read, false, access.agent, access.proxy, false, tensor)) {
      cell.read = access;
    } else {
      std::vector<Access>& reads = more_reads_[key];
      const auto same =
          std::find_if(reads.begin(), reads.end(), [&](const Access& read) { return read.agent == access.agent; });
      if (same == reads.end())
        reads.push_back(access);
      else
        *same = access;
      cell.more_reads = true;
    }
    return;
  }
  conflict(cell.read, false);
  if (cell.more_reads) {
    for (const Access& read : more_reads_[key]) conflict(read, false);
    more_reads_.erase(key);
  }
  cell.write = access;
  cell.read = {};
  cell.more_reads = false;
}

// Cells first to end - 1. Neighbours mostly were accessed together: what was done to one is then done to the next.
std::string RaceDetector::check(std::vector<Cell>& cells, uint32_t first, uint32_t end, uint64_t key,
                                const Access& access, bool write, bool tensor) {
  std::string race;
  CellWords before{}, after{};
  bool repeats = false;
  for (uint32_t i = first; i < end; ++i) {
    Cell& cell = cells[i];
    const auto words = std::bit_cast<CellWords>(cell);
    if (repeats && words == before) {
      cell = std::bit_cast<Cell>(after);
      continue;
    }
    repeats = !cell.more_reads;
    check(cell, key | i, access, write, tensor, race);
    repeats = repeats && !cell.more_reads;
    before = words;
    after = std::bit_cast<CellWords>(cell);
  }
  return race;
}

std::string RaceDetector::shared(AgentId agent, Proxy proxy, uint32_t cta, uint32_t offset, uint32_t bytes, bool write,
                                 uint32_t line) {
  if (bytes < kCellBytes) return {};
  const Access access{clocks_[agent].seen[agent], line, agent, proxy};
  return check(shared_[cta], offset / kCellBytes, (offset + bytes) / kCellBytes, uint64_t{cta} << 32, access, write,
               false);
}

std::string RaceDetector::tensor(AgentId agent, uint32_t cta, uint32_t half_quarter, uint32_t column, uint32_t columns,
                                 bool write, uint32_t line) {
  const Access access{clocks_[agent].seen[agent], line, agent, Proxy::kAsync};
  const uint32_t first = half_quarter * kColumns + column;
  return check(tensor_[cta], first, first + columns, uint64_t{1} << 63 | uint64_t{cta} << 32, access, write, true);
}

void RaceDetector::forget_tensor(uint32_t cta, uint32_t column, uint32_t columns) {
  for (uint32_t half = 0; half < kHalfQuarters; ++half)
    for (uint32_t c = column; c < column + columns; ++c) {
      tensor_[cta][half * kColumns + c] = {};
      more_reads_.erase(uint64_t{1} << 63 | uint64_t{cta} << 32 | (half * kColumns + c));
    }
}

}  // namespace jaxbw::emulator
