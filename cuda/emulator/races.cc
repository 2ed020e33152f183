#include "races.h"

#include <algorithm>
#include <bit>

#include "tmem.h"

namespace jaxbw::emulator {
namespace {

constexpr uint32_t kCellBytes = 4;
constexpr uint32_t kHalfQuarters = 8;
// Slots for operations in flight are used again as late as possible: an operation cannot be told from an earlier one of
// its slot.
constexpr uint32_t kFreeSlots = 64;

bool same_instruction(const RaceDetector::Access& a, const RaceDetector::Access& b) {
  return a.agent == b.agent && a.time == b.time && a.line == b.line;
}

}  // namespace

RaceDetector::RaceDetector(uint32_t warps, uint32_t engines, const std::vector<uint32_t>& shared_bytes, RaceRules rules)
    : warps_(warps),
      engines_(engines),
      rules_(rules),
      clocks_(2 * warps + engines),
      issued_(engines),
      threads_(2 * warps),
      times_(warps, 1),
      apart_(warps) {
  for (uint32_t engine = 0; engine < engines; ++engine) clocks_[engine_agent(engine)].seen.set(engine_agent(engine), 1);
  for (const uint32_t bytes : shared_bytes) {
    shared_.emplace_back((bytes + kCellBytes - 1) / kCellBytes);
    tensor_.emplace_back(kHalfQuarters * kTmemColumns);
  }
}

// --- threads

void RaceDetector::part(AgentId warp) {
  if (apart_[warp]) return;
  apart_[warp] = true;
  clocks_[first_lane(warp)] = clocks_[warp];
  threads_[first_lane(warp)] = threads_[warp];
}

template <class F>
void RaceDetector::learn(Actor who, F f) {
  if (who.lanes != Lanes::kAll) part(who.warp);
  if (who.lanes != Lanes::kFirst) f(who.warp);
  if (who.lanes != Lanes::kEach && apart_[who.warp]) f(first_lane(who.warp));
}

template <class F>
void RaceDetector::recall(Actor who, F f) const {
  const bool first = who.lanes == Lanes::kFirst;
  f(state_of(who.warp, first));
  if (!first && apart_[who.warp]) f(first_lane(who.warp));
}

void RaceDetector::tick(AgentId agent) {
  if (agent < warps_)
    ++times_[agent];
  else
    clocks_[agent].seen.set(agent, time(agent) + 1);
}

Clocks RaceDetector::knowledge(Actor who) const {
  Clocks known;
  recall(who, [&](AgentId state) {
    known.join(clocks_[state]);
    known.seen.raise(entry_of(who, state), times_[who.warp]);
    known.fenced.raise(entry_of(who, state), threads_[state].fenced);
  });
  return known;
}

void RaceDetector::release(Actor who, SyncClocks& sync, bool relaxed) {
  const AgentId first = relaxed ? engine_agent(0) : AgentId(0);
  recall(who, [&](AgentId state) {
    const AgentId entry = entry_of(who, state);
    const Thread& thread = threads_[state];
    sync.arriving.seen.join(clocks_[state].seen, first);
    sync.arriving.fenced.join(clocks_[state].fenced, first);
    sync.arriving.seen.join(thread.released.seen);
    sync.arriving.fenced.join(thread.released.fenced);
    sync.arriving.tmem.join(thread.published);
    sync.arriving.seen.raise(entry, relaxed ? thread.released_own : times_[who.warp]);
    sync.arriving.fenced.raise(entry, relaxed ? thread.released_fenced : thread.fenced);
  });
  tick(who.warp);
}

void RaceDetector::acquire(Actor who, const SyncClocks& sync, bool relaxed) {
  const AgentId first = relaxed ? engine_agent(0) : AgentId(0);
  learn(who, [&](AgentId state) {
    Clocks& own = clocks_[state];
    Thread& thread = threads_[state];
    own.seen.join(sync.complete.seen, first);
    own.fenced.join(sync.complete.fenced, first);
    thread.received.tmem.join(sync.complete.tmem);
    if (!relaxed) {
      own.read.join(sync.complete.seen);
      thread.received.tmem_read.join(sync.complete.tmem);
    }
    thread.unacquired.seen.join(sync.complete.seen);
    thread.unacquired.fenced.join(sync.complete.fenced);
  });
}

void RaceDetector::fence_release(Actor who) {
  learn(who, [&](AgentId state) {
    Thread& thread = threads_[state];
    thread.released.seen = clocks_[state].seen;
    thread.released.fenced = clocks_[state].fenced;
    thread.released_own = times_[who.warp];
    thread.released_fenced = thread.fenced;
  });
  tick(who.warp);
}

void RaceDetector::fence_acquire(Actor who) {
  learn(who, [&](AgentId state) {
    clocks_[state].seen.join(threads_[state].unacquired.seen);
    clocks_[state].fenced.join(threads_[state].unacquired.fenced);
    clocks_[state].read.join(threads_[state].unacquired.seen);
  });
}

void RaceDetector::fence_proxy(Actor who) {
  learn(who, [&](AgentId state) {
    clocks_[state].fenced = clocks_[state].seen;
    threads_[state].fenced = times_[who.warp];
  });
  tick(who.warp);
}

void RaceDetector::fence_tmem_before(Actor who) {
  learn(who, [&](AgentId state) { threads_[state].published.join(clocks_[state].tmem); });
}

void RaceDetector::fence_tmem_after(Actor who) {
  learn(who, [&](AgentId state) {
    Clocks& own = clocks_[state];
    Thread& thread = threads_[state];
    own.tmem.join(thread.received.tmem);
    own.tmem_read.join(thread.received.tmem_read);
    thread.behind_fence.seen = own.seen;
    thread.behind_fence.fenced = own.fenced;
    thread.behind_fence.read = own.read;
  });
}

void RaceDetector::sync_lanes(AgentId warp) {
  Clocks& own = clocks_[warp];
  Thread& thread = threads_[warp];
  if (apart_[warp]) {
    const Thread& first = threads_[first_lane(warp)];
    own.join(clocks_[first_lane(warp)]);
    own.fenced.raise(first_lane(warp), first.fenced);
    thread.released.join(first.released);
    thread.unacquired.join(first.unacquired);
    thread.published.join(first.published);
    thread.received.join(first.received);
    thread.behind_fence.join(first.behind_fence);
    apart_[warp] = false;
  }
  own.seen.raise(warp, times_[warp]);
  own.fenced.raise(warp, thread.fenced);
  tick(warp);
}

// --- asynchronous operations

AgentId RaceDetector::begin_operation(Actor issuer) {
  AgentId agent;
  if (free_.size() > kFreeSlots) {
    agent = free_.front();
    free_.pop_front();
  } else {
    agent = AgentId(clocks_.size());
    clocks_.emplace_back();
  }
  const uint32_t now = time(agent) + 1;
  clocks_[agent] = knowledge(issuer);
  clocks_[agent].seen.set(agent, now);
  tick(issuer.warp);  // what other lanes still do comes after it
  return agent;
}

Clocks RaceDetector::issue_to_engine(AgentId engine, Actor issuer) { return enqueue(engine, knowledge(issuer)); }

Clocks RaceDetector::issue_to_tensor_core(AgentId engine, Actor issuer) {
  const Clocks own = knowledge(issuer);
  if (rules_ == RaceRules::kHardware) return enqueue(engine, own);
  Clocks known;
  recall(issuer, [&](AgentId state) { known.join(threads_[state].behind_fence); });
  for (const AgentId agent : {issuer.warp, first_lane(issuer.warp)}) {
    known.seen.raise(agent, own.seen[agent]);
    known.fenced.raise(agent, own.fenced[agent]);
  }
  known.tmem = own.tmem;
  known.tmem_read = own.tmem_read;
  return enqueue(engine, known);
}

AgentId RaceDetector::begin_tensor_copy(AgentId engine, Actor issuer) {
  if (rules_ == RaceRules::kHardware) return engine;
  const AgentId copy = begin_operation(issuer);
  Clocks& queue = issued_[engine - engine_agent(0)];
  for (VectorClock* clock : {&queue.seen, &queue.fenced, &queue.tmem, &queue.read, &queue.tmem_read})
    clock->raise(copy, time(copy));
  return copy;
}

Clocks RaceDetector::enqueue(AgentId engine, const Clocks& known) {
  Clocks& queue = issued_[engine - engine_agent(0)];
  queue.join(known);
  return queue;
}

void RaceDetector::begin_engine_step(AgentId engine, const Clocks& known) {
  const uint32_t now = time(engine) + 1;
  clocks_[engine] = known;
  clocks_[engine].seen.set(engine, now);
}

void RaceDetector::observe(Actor who, AgentId operation) { observe(who, operation, time(operation)); }

void RaceDetector::observe(Actor who, AgentId operation, uint32_t time) {
  learn(who, [&](AgentId state) {
    Clocks& own = clocks_[state];
    for (VectorClock* clock : {&own.seen, &own.fenced, &own.tmem, &own.read, &own.tmem_read})
      clock->raise(operation, time);
  });
}

void RaceDetector::observe(Actor who, const VectorClock& operations) {
  learn(who, [&](AgentId state) {
    Clocks& own = clocks_[state];
    for (VectorClock* clock : {&own.seen, &own.fenced, &own.tmem, &own.read, &own.tmem_read}) clock->join(operations);
  });
}

// What asynchronous operations knew of each other goes on with them; what threads wrote does not.
void RaceDetector::end_operation(AgentId operation, SyncClocks& sync) {
  sync.arriving.seen.join(clocks_[operation].seen, engine_agent(0));
  sync.arriving.fenced.join(clocks_[operation].seen, engine_agent(0));
}

void RaceDetector::end_copy(AgentId copy, Clocks& copied) const {
  copied.seen.join(clocks_[copy].seen, engine_agent(0));
  copied.fenced.join(clocks_[copy].fenced, engine_agent(0));
}

void RaceDetector::observe_copies(Actor who, const Clocks& copied) {
  learn(who, [&](AgentId state) {
    clocks_[state].seen.join(copied.seen);
    clocks_[state].read.join(copied.seen);
  });
}

void RaceDetector::arrive_engine(AgentId engine, SyncClocks& sync) {
  end_operation(engine, sync);
  // commit implies fence::before_thread_sync (PTX 9.7.16.12.1).
  sync.arriving.tmem.join(clocks_[engine].tmem);
  sync.arriving.tmem.raise(engine, time(engine));
}

// --- accesses

bool RaceDetector::ordered(const Access& before, bool before_writes, const Access& now, bool write, bool tensor) const {
  if (before.agent == kNoAgent) return true;
  if (before.agent == now.agent) {
    const bool one_thread = before.lane == now.lane && now.lane != kSeveralLanes;
    const bool untold = before.lane == kAnyLane || now.lane == kAnyLane;
    if (now.agent >= warps_ || one_thread || untold || same_instruction(before, now)) return true;
  }
  const bool crosses = !before.async && now.async && needs_proxy_fence(write);
  const bool fenced_tensor = tensor && rules_ == RaceRules::kPtx;
  const bool reads_result = before_writes && !write && before.async;
  const auto known_to = [&](AgentId state) {
    const Clocks& own = clocks_[state];
    return knows(fenced_tensor  ? (reads_result ? own.tmem_read : own.tmem)
                 : crosses      ? own.fenced
                 : reads_result ? own.read
                                : own.seen,
                 before);
  };
  if (now.agent >= warps_) return known_to(now.agent);
  return known_to(state_of(now.agent, now.lane == 0)) || (now.lane == kAnyLane && known_to(state_of(now.agent, true)));
}

RaceDetector::Race RaceDetector::race_of(const Access& before, bool before_writes, const Access& now,
                                         bool now_writes) const {
  const AgentId state = now.agent < warps_ ? state_of(now.agent, now.lane == 0) : now.agent;
  const bool synchronised = knows(clocks_[state].seen, before);
  return {.before = before,
          .now = now,
          .before_writes = before_writes,
          .now_writes = now_writes,
          .misses_acquire = synchronised && before.async == now.async,
          .misses_proxy_fence = synchronised && before.async != now.async};
}

void RaceDetector::check(Cell& cell, uint64_t key, Access access, bool write, bool tensor, std::optional<Race>& race) {
  // Compilers have each warp store what all of them know; in whatever order, it is there.
  const auto repeated = [&](const Access& before, bool before_writes) {
    return access.repeats && before_writes && before.line == access.line && rules_ == RaceRules::kHardware;
  };
  const auto conflict = [&](const Access& before, bool before_writes) {
    if (!race && !ordered(before, before_writes, access, write, tensor) && !repeated(before, before_writes))
      race = race_of(before, before_writes, access, write);
  };
  // What several lanes do in one instruction is one access of them all.
  const auto replace = [&](Access& before) {
    const bool joins = same_instruction(before, access) && before.lane != access.lane;
    before = access;
    if (joins) before.lane = kSeveralLanes;
  };
  conflict(cell.write, true);
  if (!write) {
    if (ordered(cell.read, false, access, false, tensor)) {
      replace(cell.read);
    } else {
      std::vector<Access>& reads = more_reads_[key];
      const auto same = std::find_if(reads.begin(), reads.end(), [&](const Access& read) {
        return same_instruction(read, access) || (read.agent == access.agent && read.lane == access.lane);
      });
      if (same == reads.end())
        reads.push_back(access);
      else
        replace(*same);
      cell.more_reads = true;
    }
    return;
  }
  conflict(cell.read, false);
  if (cell.more_reads) {
    const auto more = more_reads_.find(key);
    for (const Access& read : more->second) conflict(read, false);
    more_reads_.erase(more);
  }
  replace(cell.write);
  cell.read = {};
  cell.more_reads = false;
}

// Bytes first to end - 1 of a cell. From the first access to a part on it is divided, until it is written as a whole.
void RaceDetector::check_bytes(Cell& cell, uint64_t key, uint32_t first, uint32_t end, const Access& access, bool write,
                               std::optional<Race>& race) {
  const uint64_t key_of_bytes = (key >> 32 | uint64_t{1} << 30) << 32 | uint32_t(key) * kCellBytes;
  if (!cell.divided) {
    if (free_bytes_.empty()) {
      free_bytes_.push_back(uint32_t(bytes_.size()));
      bytes_.emplace_back();
    }
    const uint32_t place = free_bytes_.back();
    free_bytes_.pop_back();
    bytes_[place].fill(cell);
    if (cell.more_reads) {
      const std::vector<Access> reads = std::move(more_reads_.at(key));
      more_reads_.erase(key);
      for (uint32_t byte = 0; byte < kCellBytes; ++byte) more_reads_[key_of_bytes + byte] = reads;
    }
    cell = {.write = {}, .read = {}, .divided = place + 1};
  }
  const uint32_t place = cell.divided - 1;
  check(bytes_[place], first, end, key_of_bytes, access, write, false, race);
  if (write && first == 0 && end == kCellBytes) {
    cell = bytes_[place][0];
    free_bytes_.push_back(place);
  }
}

// Cells first to end - 1. Neighbours mostly were accessed together: what was done to one is then done to the next.
void RaceDetector::check(std::span<Cell> cells, uint32_t first, uint32_t end, uint64_t key, const Access& access,
                         bool write, bool tensor, std::optional<Race>& race) {
  CellWords before{}, after{};
  bool repeats = false;
  for (uint32_t i = first; i < end; ++i) {
    Cell& cell = cells[i];
    const auto words = std::bit_cast<CellWords>(cell);
    if (repeats && words == before) {
      cell = std::bit_cast<Cell>(after);
      continue;
    }
    if (cell.divided) {
      check_bytes(cell, key | i, 0, kCellBytes, access, write, race);
      repeats = false;
      continue;
    }
    repeats = !cell.more_reads;
    check(cell, key | i, access, write, tensor, race);
    repeats = repeats && !cell.more_reads;
    before = words;
    after = std::bit_cast<CellWords>(cell);
  }
}

std::optional<RaceDetector::Race> RaceDetector::shared(Access access, bool write, uint32_t cta, uint32_t offset,
                                                       uint32_t bytes) {
  access.time = time(access.agent);
  std::optional<Race> race;
  std::vector<Cell>& cells = shared_[cta];
  const uint64_t key = uint64_t{cta} << 32;
  const auto part = [&](uint32_t begin, uint32_t end) {
    const uint32_t cell = begin / kCellBytes;
    if (begin < end)
      check_bytes(cells[cell], key | cell, begin % kCellBytes, end - cell * kCellBytes, access, write, race);
  };
  const uint32_t end = offset + bytes, first_whole = (offset + kCellBytes - 1) / kCellBytes;
  const uint32_t end_whole = end / kCellBytes;
  if (first_whole > end_whole) {
    part(offset, end);
  } else {
    part(offset, first_whole * kCellBytes);
    check(cells, first_whole, end_whole, key, access, write, false, race);
    part(end_whole * kCellBytes, end);
  }
  return race;
}

std::optional<RaceDetector::Race> RaceDetector::tensor(Access access, bool write, uint32_t cta, uint32_t half_quarter,
                                                       uint32_t column, uint32_t columns) {
  access.time = time(access.agent);
  access.async = true;
  const uint32_t first = half_quarter * kTmemColumns + column;
  std::optional<Race> race;
  check(tensor_[cta], first, first + columns, uint64_t{1} << 63 | uint64_t{cta} << 32, access, write, true, race);
  return race;
}

void RaceDetector::forget_tensor(uint32_t cta, uint32_t column, uint32_t columns) {
  for (uint32_t half = 0; half < kHalfQuarters; ++half)
    for (uint32_t c = column; c < column + columns; ++c) {
      tensor_[cta][half * kTmemColumns + c] = {};
      more_reads_.erase(uint64_t{1} << 63 | uint64_t{cta} << 32 | (half * kTmemColumns + c));
    }
}

}  // namespace jaxbw::emulator
