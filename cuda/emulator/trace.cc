// What a launch with tracing remembers: jaxbw/_src/emulator/timeline.py draws it.
#include "machine.h"

namespace jaxbw::emulator {

Event Machine::event_of(Event::Kind kind, const Cta& cta, uint64_t begin) const {
  const Dim grid = options_.grid;
  Event event;
  event.kind = kind;
  event.cta = cta.id.x + grid.x * (cta.id.y + grid.y * cta.id.z);
  event.begin = begin;
  event.end = ticks_;
  return event;
}

void Machine::trace_run(const Warp& warp, uint64_t begin) {
  if (!options_.trace || begin == ticks_) return;
  Event event = event_of(Event::Kind::kRun, *warp.cta, begin);
  event.warp = warp.index;
  report_.events.push_back(std::move(event));
}

void Machine::trace_wait(const Warp& warp, const Group& group) {
  if (!options_.trace) return;
  Event event = event_of(Event::Kind::kWait, *warp.cta, group.parked);
  event.warp = warp.index;
  event.line = program_.code[group.pc].line;
  event.name = wait_name(group.wait);
  if (group.wait == Wait::kMBarrier) event.mbarrier = static_cast<const MBarrier*>(group.key)->offset;
  report_.events.push_back(std::move(event));
}

void Machine::trace_operation(const Operation& operation) {
  if (!options_.trace) return;
  Event event = event_of(Event::Kind::kOperation, *operation.issuer, operation.issued);
  event.warp = operation.warp;
  event.started = operation.started;
  event.line = operation.line;
  event.name = operation.instruction->statement->opcode;
  event.operation = operation.number;
  event.bytes = operation.bytes;
  event.shape = operation.shape;
  report_.events.push_back(std::move(event));
}

// Whatever changes an mbarrier, in the CTA that has it.
void Machine::trace_signal(const MBarrier& barrier, int64_t phase) {
  if (!options_.trace) return;
  const Operation* by = acting_.operation;
  const Cluster& cluster = by ? *by->issuer->cluster : *acting_.warp->cta->cluster;
  Event event = event_of(Event::Kind::kSignal, *cluster.ctas[barrier.rank], ticks_);
  const Cta& issuer = by ? *by->issuer : *acting_.warp->cta;
  event.by_engine = by;
  event.operation = by ? by->number : 0;
  event.warp = by ? by->warp : acting_.warp->index;
  event.mbarrier = barrier.offset;
  event.phase = phase;
  event.shape = {issuer.rank};
  const Instruction& instruction = by ? *by->instruction : *acting_.instruction;
  event.line = instruction.line;
  event.name = instruction.statement->opcode;
  report_.events.push_back(std::move(event));
}

void Machine::trace_pass(const Step& step, const MBarrier* barrier, uint64_t left) {
  if (!options_.trace) return;
  Event event = event_of(Event::Kind::kPass, step.cta, ticks_);
  event.warp = step.warp.index;
  event.line = step.line;
  event.name = acting_.instruction->statement->opcode;
  event.bytes = left;
  if (barrier) {
    event.mbarrier = barrier->offset;
    event.phase = int64_t(barrier->phase) - 1;
  }
  report_.events.push_back(std::move(event));
}

// The phase that has just been completed. When it began nobody needs to know: when the one before it ended.
void Machine::trace_phase(const MBarrier& barrier) {
  if (!options_.trace) return;
  const Operation* by = acting_.operation;
  const Cluster& cluster = by ? *by->issuer->cluster : *acting_.warp->cta->cluster;
  Event event = event_of(Event::Kind::kPhase, *cluster.ctas[barrier.rank], ticks_);
  event.by_engine = by;
  event.warp = by ? by->warp : acting_.warp->index;
  event.mbarrier = barrier.offset;
  const Instruction& instruction = by ? *by->instruction : *acting_.instruction;
  event.line = instruction.line;
  event.name = instruction.statement->opcode;
  report_.events.push_back(std::move(event));
}

void Machine::trace_finding(const char* kind, uint32_t line) {
  if (!options_.trace) return;
  const Operation* by = acting_.operation;
  Event event = event_of(Event::Kind::kFinding, by ? *by->issuer : *acting_.warp->cta, ticks_);
  event.warp = by ? by->warp : acting_.warp->index;
  event.line = line;
  event.name = kind;
  report_.events.push_back(std::move(event));
}

}  // namespace jaxbw::emulator
