// Which of the things that could happen does happen: warps, lane groups within a warp, asynchronous operations.
//
//   eager   operations complete as they are issued; warps take turns
//   latest  operations proceed only when no warp can: finds waits that are missing
//   random  anything may happen next, in pieces of random size, and lanes may part at any instruction; how wildly
//           is itself drawn from the seed
//   hold    one warp, or one asynchronous operation, drawn from the seed, goes on only when nothing else can: finds
//   what
//           is right only as long as operations take about as long as each other
//   pct     random priorities, lowered at random points (Burckhardt et al., ASPLOS 2010): finds orderings
//           that take few but far-apart reversals
#include <algorithm>
#include <utility>

#include "machine.h"

namespace jaxbw::emulator {
namespace {

// Instructions that a polling loop may run before others get their turn again.
constexpr uint32_t kPatience = 20000;
// Instructions of one lane group of a diverged warp before the next is picked.
constexpr uint32_t kSlice = 64;

// A wgmma that follows needs a fence between (PTX 9.7.15.7.1).
void note_use(Warp& warp, const Instruction& in) {
  const auto note = [&](Reg reg) { warp.state(reg).fences = warp.fences; };
  std::for_each_n(in.s, in.sources, note);
  std::for_each_n(in.d, in.destinations, note);
  std::for_each(in.list.begin(), in.list.end(), note);
}

}  // namespace

bool Warp::runnable() const {
  return std::any_of(groups.begin(), groups.end(), [](const Group& group) { return group.wait == Wait::kNone; });
}

void Machine::draw_schedule() {
  const auto choose = [&](auto... values) {
    const double table[] = {double(values)...};
    return table[random_() % std::size(table)];
  };
  if (options_.schedule == Schedule::kRandom) {
    quantum_ = uint32_t(choose(1, 4, 32, 512));
    engine_bias_ = choose(0.02, 0.2, 0.5, 0.9);
    part_limit_ = uint32_t(choose(1, 4, 64, 1 << 20));
    refusal_ = choose(0, 0, 0.1, 0.5);
    divergence_ = choose(0, 0, 0.002, 0.05);
  } else if (options_.schedule == Schedule::kPct) {
    quantum_ = 256;
    part_limit_ = 16;
    refusal_ = choose(0, 0.2);
  } else if (options_.schedule == Schedule::kHold) {
    quantum_ = 64;
    part_limit_ = 1 << 20;
    // How many operations there will be is not known: each power of two of them is as likely.
    if (random_() % 4)
      held_operation_ = 1 + random_() % (uint64_t{1} << random_() % 10);
    else
      held_warp_ = 1 + random_() % std::max<uint64_t>(1, std::min<uint64_t>(resident_limit_, cluster_count_) *
                                                             options_.cluster.count() *
                                                             ((options_.block.count() + kLanes - 1) / kLanes));
  }
}

void Machine::assign_priority(int64_t& priority) {
  if (options_.schedule == Schedule::kPct) priority = int64_t(random_() >> 2);
}

bool Machine::refuse_clc() { return refusal_ > 0 && random_unit() < refusal_; }

bool Machine::gives_up_early() { return options_.schedule == Schedule::kRandom && random_() % 16 == 0; }

uint32_t Machine::part(uint32_t parts) {
  if (options_.schedule == Schedule::kEager || options_.schedule == Schedule::kLatest) return parts;
  return std::min<uint32_t>(parts, 1 + uint32_t(random_() % part_limit_));
}

// --- lists of what can go on

void Machine::make_runnable(Warp& warp) {
  preempt_ = options_.schedule == Schedule::kPct;
  if (warp.slot >= 0) return;
  warp.slot = int32_t(runnable_.size());
  runnable_.push_back(&warp);
}

void Machine::remove_runnable(Warp& warp) {
  if (warp.slot < 0) return;
  runnable_[warp.slot] = runnable_.back();
  runnable_[warp.slot]->slot = warp.slot;
  runnable_.pop_back();
  warp.slot = -1;
}

void Machine::wake(const void* key) {
  const auto it = sleepers_.find(key);
  if (it == sleepers_.end()) return;
  const std::vector<Warp*> warps = std::move(it->second);
  sleepers_.erase(it);
  for (Warp* warp : warps) {
    for (Group& group : warp->groups) {
      if (group.wait == Wait::kNone || group.key != key) continue;
      trace_wait(*warp, group);
      group.wait = Wait::kNone;
    }
    if (warp->runnable()) make_runnable(*warp);
  }
}

void Machine::issue(std::unique_ptr<Operation> operation, Queue* queue) {
  count(*acting_.instruction);
  operation->instruction = acting_.instruction;
  operation->warp = acting_.warp->index;
  if (!operation->lanes) operation->lanes = acting_.lanes;
  enqueue(std::move(operation), queue);
}

void Machine::send(std::unique_ptr<Operation> operation, const Operation& from) {
  operation->instruction = from.instruction;
  operation->warp = from.warp;
  operation->lanes = from.lanes;
  enqueue(std::move(operation), nullptr);
}

void Machine::enqueue(std::unique_ptr<Operation> operation, Queue* queue) {
  operation->issued = ticks_;
  operation->number = ++issued_;
  if (eager() && (!queue || queue->operations.empty())) {
    while (!step(*operation)) {
    }
    return;
  }
  if (!queue) {
    temporary_.push_back(std::make_unique<Queue>());
    queue = temporary_.back().get();
    queue->temporary = true;
  }
  if (queue->slot < 0) {
    queue->slot = 0;
    assign_priority(queue->priority);
    pending_.push_back(queue);
  }
  queue->operations.push_back(std::move(operation));
  preempt_ = options_.schedule == Schedule::kPct;
}

bool Machine::step(Operation& operation) {
  const Operation* outer = std::exchange(acting_.operation, &operation);
  ++ticks_;
  if (!operation.started) operation.started = ticks_;
  const bool done = operation.step(*this);
  if (done) trace_operation(operation);
  acting_.operation = outer;
  return done;
}

void Machine::step_queue(Queue& queue) {
  since_engine_ = naps_ = 0;
  Operation& operation = *queue.operations.front();
  bool done = false;
  try {
    done = step(operation);
  } catch (const LocatedError&) {
    throw;
  } catch (const Error& error) {
    throw LocatedError(program_.module->file, operation.line,
                       std::string(error.what()) + " [" + place(*operation.issuer) + ", asynchronous]");
  }
  if (!done) return;
  queue.operations.pop_front();
  if (queue.operations.empty()) remove_pending(queue);
}

void Machine::land_arrivals(Warp& warp) {
  while (!warp.arrivals.operations.empty()) step_queue(warp.arrivals);
}

void Machine::remove_pending(Queue& queue) {
  std::erase(pending_, &queue);  // keeps the order of issue
  queue.slot = -1;
  if (queue.temporary) std::erase_if(temporary_, [&](const auto& owned) { return owned.get() == &queue; });
}

// --- the choice

void Machine::choose_and_run() {
  if (steps_ > options_.step_limit)
    throw Error("the launch exceeds its limit of " + std::to_string(options_.step_limit) + " instructions");
  if (runnable_.empty() && pending_.empty()) {
    if (!release_timeouts()) deadlock();
    return;
  }
  switch (options_.schedule) {
    case Schedule::kEager:
    case Schedule::kLatest:
      if (runnable_.empty() || (!pending_.empty() && (naps_ >= runnable_.size() ||  // all poll, in their own words
                                                      since_engine_ > kPatience * runnable_.size())))
        return step_queue(*pending_.front());
      cursor_ = (cursor_ + 1) % runnable_.size();
      return run_warp(*runnable_[cursor_], quantum_);
    case Schedule::kRandom: {
      const bool engine = !pending_.empty() && (runnable_.empty() || random_unit() < engine_bias_);
      if (engine) return step_queue(*pending_[random_() % pending_.size()]);
      return run_warp(*runnable_[random_() % runnable_.size()], 1 + uint32_t(random_() % quantum_));
    }
    case Schedule::kHold:
      return run_unheld();
    case Schedule::kPct: {
      Warp* warp = nullptr;
      Queue* queue = nullptr;
      for (Warp* candidate : runnable_)
        if (!warp || candidate->priority > warp->priority) warp = candidate;
      for (Queue* candidate : pending_)
        if (!queue || candidate->priority > queue->priority) queue = candidate;
      const bool engine = queue && (!warp || queue->priority > warp->priority);
      // A change point, or a loop that polls for something of lower priority.
      if (random_() % 2048 == 0 || (!engine && since_engine_ > kPatience)) {
        (engine ? queue->priority : warp->priority) = --lowest_priority_;
        since_engine_ = 0;
        return;
      }
      return engine ? step_queue(*queue) : run_warp(*warp, quantum_);
    }
  }
}

void Machine::run_unheld() {
  const auto draw = [&](const auto& all, auto is_held) {
    const auto held = std::find_if(all.begin(), all.end(), is_held);
    const size_t count = all.size() - (held != all.end());
    if (count == 0) return all.end();
    const auto drawn = all.begin() + ptrdiff_t(random_() % count);
    return held <= drawn ? drawn + 1 : drawn;
  };
  const auto queue =
      draw(pending_, [&](const Queue* candidate) { return candidate->operations.front()->number == held_operation_; });
  const auto warp = draw(runnable_, [&](const Warp* candidate) { return candidate->number == held_warp_; });
  const bool no_queue = queue == pending_.end(), no_warp = warp == runnable_.end();
  // Others that only poll may do so for what is held.
  const bool stuck = no_queue && (no_warp || since_engine_ > kPatience * runnable_.size());
  if (stuck && !pending_.empty()) return step_queue(*pending_.front());
  if (stuck) {
    since_engine_ = 0;
    return run_warp(*runnable_[random_() % runnable_.size()], quantum_);
  }
  if (no_warp || (!no_queue && random_() % 2)) return step_queue(**queue);
  run_warp(**warp, quantum_);
}

// try_wait returns false after a while (PTX 9.7.13.15.16). Nothing else can run: let every waiter see that, once.
bool Machine::release_timeouts() {
  bool any = false;
  for (auto& cluster : clusters_)
    for (auto& cta : cluster->ctas)
      for (auto& warp : cta->warps)
        for (Group& group : warp->groups) {
          if (group.wait != Wait::kMBarrier || group.timed_out) continue;
          trace_wait(*warp, group);
          group.wait = Wait::kNone;
          group.arrived = group.timed_out = any = true;
          make_runnable(*warp);
        }
  return any;
}

// --- within a warp

// Lowest pc first, since compilers lay out the join of a branch behind its sides: so groups meet again.
// Not always, lest a lane that polls keep the lane that it waits for from running.
size_t Machine::pick_group(Warp& warp) {
  size_t best = warp.groups.size(), count = 0;
  for (size_t i = 0; i < warp.groups.size(); ++i) {
    if (warp.groups[i].wait != Wait::kNone) continue;
    ++count;
    if (best == warp.groups.size() || warp.groups[i].pc < warp.groups[best].pc) best = i;
  }
  const uint32_t period = divergence_ > 0 ? 2 : 16;
  if (count > 1 && ++warp.picks % period == 0) {
    size_t skip = options_.schedule == Schedule::kRandom ? random_() % count : warp.picks / period % count;
    for (size_t i = 0; i < warp.groups.size(); ++i)
      if (warp.groups[i].wait == Wait::kNone && skip-- == 0) return i;
  }
  return best;
}

// Joins the group with another that stands at the same instruction, and has not begun it.
bool Machine::merge(Warp& warp, size_t index) {
  const auto free = [](const Group& each) { return !each.arrived && !each.apart; };
  Group& group = warp.groups[index];
  for (size_t i = 0; i < warp.groups.size(); ++i) {
    Group& other = warp.groups[i];
    const bool can = i != index && other.pc == group.pc && free(other) && free(group) &&
                     (other.wait == Wait::kNone || other.wait == Wait::kConvergence);
    if (!can) continue;
    if (divergence_ > 0 && other.wait == Wait::kNone && random_() % 8)
      continue;  // lanes that parted stay apart for a while
    group.mask |= other.mask;
    group.timed_out &= other.timed_out;
    warp.groups.erase(warp.groups.begin() + i);
    return true;
  }
  return false;
}

void Machine::run_warp(Warp& warp, uint32_t budget) {
  preempt_ = false;
  acting_.warp = &warp;
  const uint64_t begin = ticks_;
  bool slept = false;
  while (budget && !preempt_ && !slept) {
    const size_t index = pick_group(warp);
    if (index == warp.groups.size()) break;
    slept = !execute(warp, index, budget);
  }
  naps_ = slept ? naps_ + 1 : 0;
  trace_run(warp, begin);
  if (!warp.runnable()) remove_runnable(warp);
}

// Does the instruction touch a row that an asynchronous operation owns? The hardware has scoreboards for loads from
// tensor memory, which real compilers rely on; the PTX ISA has not. For wgmma neither has. A mov of a loaded register
// is no use of it: in C++ the float view of a register stands before the wait, and it is the copy that must wait.
// Whoever has used a register knows that its load is over, as by a wait.
bool Machine::stalls(Step& step, const Instruction& in) {
  using enum RowState::Unwaited;
  Warp& warp = step.warp;
  const void* key = nullptr;
  const bool moves = in.flags & kPassesOn;
  const bool packs = moves && in.sources == 0;  // its list holds sources, otherwise destinations
  bool used = false, copies = false;
  uint32_t copied = 0;  // the last of the loads whose registers a mov copies
  const auto touch = [&](Reg reg, bool reads, bool writes) {
    const RowState& state = warp.state(reg);
    if (state.loads)
      key = &warp.tmem_loads;
    else if (state.wgmma_writes || (writes && state.wgmma_reads))
      key = step.cta.warpgroups[warp.index / 4].get();
    used |= (writes && state.unwaited == kLoaded) || (reads && !moves && state.unwaited != kNo);
    copies |= reads && state.unwaited != kNo;
    if (reads && state.unwaited != kNo) copied = std::max(copied, state.load);
  };
  for (uint32_t i = 0; i < in.sources; ++i) touch(in.s[i], true, false);
  for (uint32_t i = 0; i < in.destinations; ++i) touch(in.d[i], false, true);
  if (!(in.flags & kOwnsList))
    for (const Reg reg : in.list) touch(reg, !moves || packs, !packs);
  const bool load = key == &warp.tmem_loads;
  if (key) {
    if (!load)
      finding("in-flight register", step, "a register is used before the wgmma.wait_group of the wgmma that owns it");
    step.park(load ? Wait::kTmemAccess : Wait::kWgmma, key);
    sleepers_[key].push_back(&warp);
    return true;
  }
  if (warp.unwaited.empty()) return false;
  if (used && strict())
    finding("in-flight register", step, "a register is used before the tcgen05.wait::ld of its tcgen05.ld");
  const auto settle = [&](Reg reg, bool reads, bool writes) {
    RowState& state = warp.state(reg);
    // To write over a register is to use it. Of the loads whose registers a mov packs, the copy stands for the last.
    if ((writes && state.unwaited == kLoaded) || (reads && state.unwaited != kNo && (!moves || state.load != copied)))
      load_is_over(warp, state.load);
    if (!writes) return;
    state.unwaited = moves && copies ? kCopied : kNo;
    if (state.unwaited == kNo) return;
    state.load = copied;
    warp.unwaited.push_back(reg);
  };
  for (uint32_t i = 0; i < in.sources; ++i) settle(in.s[i], true, false);
  for (uint32_t i = 0; i < in.destinations; ++i) settle(in.d[i], false, true);
  if (!(in.flags & kOwnsList))
    for (const Reg reg : in.list) settle(reg, !moves || packs, !packs);
  return false;
}

void Machine::load_is_over(Warp& warp, uint32_t number) {
  std::erase_if(warp.unwaited, [&](Reg reg) {
    RowState& state = warp.state(reg);
    if (state.load == number) state.unwaited = RowState::Unwaited::kNo;
    return state.unwaited == RowState::Unwaited::kNo;
  });
  RaceDetector& races = *warp.cta->cluster->races;
  std::erase_if(warp.tmem_agents[0], [&](const Warp::TmemAgent& agent) {
    if (agent.number != number) return false;
    races.observe({warp.agent, Lanes::kEach}, agent.id);
    races.retire(agent.id);
    return true;
  });
}

// Runs one group until it parks, diverges, merges, or its budget is spent. False: it sleeps, others have a turn.
bool Machine::execute(Warp& warp, size_t index, uint32_t& budget) {
  const Instruction* code = program_.code.data();
  const bool several = warp.groups.size() > 1;
  const bool check = checking();
  uint32_t slice = several ? std::min(budget, kSlice) : budget;
  budget -= slice;
  const uint32_t given = slice;
  Group& group = warp.groups[index];
  Step step{
      .machine = *this, .warp = warp, .cta = *warp.cta, .group = group, .file = warp.file, .active = 0, .next = 0};
  bool keep_turn = true, leave = false;
  try {
    while (slice && !leave) {
      if (several && merge(warp, index)) break;
      const Instruction& in = code[group.pc];
      --slice;
      ++ticks_;
      acting_.instruction = &in;
      step.line = in.line;
      uint32_t active = group.mask;
      if (in.guarded) {
        const uint32_t value = predicate(step, in.guard);
        if (check && (undefined(step, in.guard) & active))
          finding("poison", step, "a guard depends on a value that was never written");
        active &= in.guard_negated ? ~value : value;
        if (!active) {
          ++group.pc;
          continue;
        }
        if (active != group.mask && (in.flags & (kMayPark | kAligned | kExit))) {
          const Group rest{.mask = group.mask & ~active, .pc = group.pc + 1};
          group.mask = active;
          warp.groups.push_back(rest);  // `group` is dangling from here on
          break;
        }
      }
      if ((in.flags & kAligned) && active != warp.live) {
        group.wait = Wait::kConvergence;
        break;
      }
      if (divergence_ > 0 && !group.arrived && (in.flags & kAligned) == 0 && (group.mask & (group.mask - 1)) &&
          random_unit() < divergence_) {
        const Group rest{.mask = group.mask & uint32_t(random_()), .pc = group.pc};
        if (rest.mask == 0 || rest.mask == group.mask) continue;
        group.mask &= ~rest.mask;
        warp.groups.push_back(rest);
        break;
      }
      step.active = acting_.lanes = active;
      if ((warp.in_flight || !warp.unwaited.empty()) && stalls(step, in)) break;
      step.next = group.pc + 1;
      step.outcome = Step::Outcome::kNext;
      in.execute(step, in);
      if (check && (in.flags & kUsesFragments)) note_use(warp, in);
      if (check && (in.flags & kPure)) {
        uint32_t poison = 0;
        for (uint32_t i = 0; i < in.sources; ++i) poison |= undefined(step, in.s[i]);
        for (uint32_t i = 0; i < in.destinations; ++i) mark_written(step, in.d[i], active, poison);
      }
      switch (step.outcome) {
        case Step::Outcome::kNext:
          group.pc = step.next;
          break;
        case Step::Outcome::kYield:
          group.pc = step.next;
          keep_turn = false;
          leave = true;
          break;
        case Step::Outcome::kPark:
          if (group.wait != Wait::kConvergence) {
            sleepers_[group.key].push_back(&warp);
            ++report_.warp_waits[warp.index][wait_name(group.wait)];
          }
          leave = true;
          break;
        case Step::Outcome::kDiverge: {
          const Group rest{.mask = group.mask & ~step.taken, .pc = step.other, .apart = group.apart};
          group.mask = step.taken;
          group.pc = step.next;
          warp.groups.push_back(rest);
          leave = true;
          break;
        }
        case Step::Outcome::kExit:
          warp.groups.erase(warp.groups.begin() + index);
          exit_lanes(warp, active, in.line);
          leave = true;
          break;
      }
    }
  } catch (const LocatedError&) {
    throw;
  } catch (const Error& error) {
    throw LocatedError(
        program_.module->file, step.line,
        std::string(error.what()) + " [" + place(step.cta) + " warp " + std::to_string(warp.index) + "]");
  }
  const uint32_t used = given - slice;
  budget += slice;
  steps_ += used;
  since_engine_ += used;
  report_.instructions[warp.index] += used;
  return keep_turn;
}

}  // namespace jaxbw::emulator
