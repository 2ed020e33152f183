// The lanes of a warp together: elect, shuffles, votes, reductions, the warp's barrier
// (PTX 9.7.9.6, 9.7.13.2, 9.7.13.10-14).
//
// The lanes of the member mask wait for each other at the instruction (PTX 9.7.13.8).
#include <algorithm>
#include <bit>
#include <cmath>
#include <limits>

#include "decoder.h"
#include "lanes.h"

namespace jaxbw::emulator {
namespace {

// True when all live lanes of `members` are here; else the group waits for them.
bool gathered(Step& s, uint32_t members) {
  if (!(members >> __builtin_ctz(s.active) & 1)) throw Error("the executing lane is not in its own member mask");
  if ((members & s.warp.live & ~s.group.mask) == 0) return true;
  s.group.wait = Wait::kConvergence;
  s.outcome = Step::Outcome::kPark;
  return false;
}

uint32_t member_mask(Step& s, Reg reg) { return row32(s, reg)[__builtin_ctz(s.active)]; }

void elect(Step& s, const Instruction& in) {
  const uint32_t members = member_mask(s, in.s[0]);
  if (!gathered(s, members)) return;
  const uint32_t leader = uint32_t(__builtin_ctz(members & s.group.mask));
  for_lanes(s.active, [&](uint32_t i) { set_lane(s, in.d[0], i, leader); });
  uint32_t& p = predicate(s, in.d[1]);
  p = (p & ~s.active) | (1u << leader & s.active);
  mark_written(s, in.d[0], s.active);
  mark_written(s, in.d[1], s.active);
}

enum class Shuffle : uint32_t { kUp, kDown, kButterfly, kIndex };

void shuffle(Step& s, const Instruction& in) {
  const uint32_t members = member_mask(s, in.s[3]);
  if (!gathered(s, members)) return;
  const uint32_t *a = row32(s, in.s[0]), *b = row32(s, in.s[1]), *c = row32(s, in.s[2]);
  uint32_t values[kLanes], in_range = 0, poison = 0;
  for_lanes(s.active, [&](uint32_t lane) {
    const uint32_t amount = b[lane] & 31, clamp = c[lane] & 31, segment = c[lane] >> 8 & 31;
    const int32_t max_lane = int32_t((lane & segment) | (clamp & ~segment)), min_lane = int32_t(lane & segment);
    int32_t from = 0;
    bool valid = false;
    switch (Shuffle(in.target)) {
      case Shuffle::kUp:
        from = int32_t(lane) - int32_t(amount);
        valid = from >= max_lane;
        break;
      case Shuffle::kDown:
        from = int32_t(lane + amount);
        valid = from <= max_lane;
        break;
      case Shuffle::kButterfly:
        from = int32_t(lane ^ amount);
        valid = from <= max_lane;
        break;
      case Shuffle::kIndex:
        from = min_lane | int32_t(amount & ~segment);
        valid = from <= max_lane;
        break;
    }
    if (!valid) from = int32_t(lane);
    in_range |= uint32_t{valid} << lane;
    values[lane] = a[from];
    if (undefined(s, in.s[0]) >> from & 1 || !(s.active >> from & 1)) poison |= 1u << lane;
  });
  for_lanes(s.active, [&](uint32_t i) { set_lane(s, in.d[0], i, values[i]); });
  mark_written(s, in.d[0], s.active, poison);
  if (in.destinations < 2) return;
  uint32_t& p = predicate(s, in.d[1]);
  p = (p & ~s.active) | (in_range & s.active);
  mark_written(s, in.d[1], s.active);
}

enum class Vote : uint32_t { kAll, kAny, kUniform, kBallot };

void vote(Step& s, const Instruction& in) {
  const uint32_t members = in.sources > 1 ? member_mask(s, in.s[1]) : s.active;
  if (in.sources > 1 && !gathered(s, members)) return;
  const uint32_t value = in.detail ? ~predicate(s, in.s[0]) : predicate(s, in.s[0]);
  const uint32_t yes = value & s.active;
  const uint32_t poison = undefined(s, in.s[0]) & s.active ? kAllLanes : 0;
  mark_written(s, in.d[0], s.active, poison);
  if (Vote(in.target) == Vote::kBallot) {
    for_lanes(s.active, [&](uint32_t i) { set_lane(s, in.d[0], i, yes); });
    return;
  }
  const bool result = Vote(in.target) == Vote::kAll   ? yes == s.active
                      : Vote(in.target) == Vote::kAny ? yes != 0
                                                      : yes == 0 || yes == s.active;
  uint32_t& p = predicate(s, in.d[0]);
  p = result ? p | s.active : p & ~s.active;
}

void active_mask(Step& s, const Instruction& in) {
  for_lanes(s.active, [&](uint32_t i) { set_lane(s, in.d[0], i, s.active); });
  mark_written(s, in.d[0], s.active);
}

void match(Step& s, const Instruction& in) {
  const uint32_t members = member_mask(s, in.s[1]);
  if (!gathered(s, members)) return;
  uint32_t masks[kLanes];
  for_lanes(s.active, [&](uint32_t i) {
    masks[i] = 0;
    for_lanes(s.active,
              [&](uint32_t j) { masks[i] |= uint32_t{lane_value(s, in.s[0], i) == lane_value(s, in.s[0], j)} << j; });
  });
  const bool all = in.target;
  const bool agree = masks[__builtin_ctz(s.active)] == s.active;
  for_lanes(s.active, [&](uint32_t i) { set_lane(s, in.d[0], i, all && !agree ? 0 : masks[i]); });
  mark_written(s, in.d[0], s.active);
  if (in.destinations < 2) return;
  uint32_t& p = predicate(s, in.d[1]);
  p = agree ? p | s.active : p & ~s.active;
  mark_written(s, in.d[1], s.active);
}

template <auto F>
void reduce(Step& s, const Instruction& in) {
  const uint32_t members = member_mask(s, in.s[1]);
  if (!gathered(s, members)) return;
  const uint32_t* a = row32(s, in.s[0]);
  uint32_t out = a[__builtin_ctz(s.active)];
  for_lanes(s.active & (s.active - 1), [&](uint32_t i) { out = F(out, a[i]); });
  for_lanes(s.active, [&](uint32_t i) { set_lane(s, in.d[0], i, out); });
  mark_written(s, in.d[0], s.active, undefined(s, in.s[0]) & s.active ? kAllLanes : 0);
}
uint32_t reduce_add(uint32_t a, uint32_t b) { return a + b; }
uint32_t reduce_and(uint32_t a, uint32_t b) { return a & b; }
uint32_t reduce_or(uint32_t a, uint32_t b) { return a | b; }
uint32_t reduce_xor(uint32_t a, uint32_t b) { return a ^ b; }
template <class T>
uint32_t reduce_min(uint32_t a, uint32_t b) {
  return uint32_t(std::min(T(a), T(b)));
}
template <class T>
uint32_t reduce_max(uint32_t a, uint32_t b) {
  return uint32_t(std::max(T(a), T(b)));
}

// redux.sync.{min,max}{.abs}{.NaN}.f32 (PTX 9.7.13.13): a NaN counts for nothing, unless .NaN says that it wins.
enum FloatReduction : uint64_t { kAbs = 1, kNanWins = 2, kMaximum = 4 };
void reduce_float(Step& s, const Instruction& in) {
  const uint32_t members = member_mask(s, in.s[1]);
  if (!gathered(s, members)) return;
  const auto* a = reinterpret_cast<const float*>(row32(s, in.s[0]));
  float out = std::numeric_limits<float>::quiet_NaN();
  bool any_nan = false;
  for_lanes(s.active, [&](uint32_t i) {
    const float value = in.detail & kAbs ? std::fabs(a[i]) : a[i];
    any_nan |= value != value;
    if (value != value) return;
    const bool below = value < out || (value == out && std::signbit(value) && !std::signbit(out));  // -0 < +0
    const bool above = value > out || (value == out && !std::signbit(value) && std::signbit(out));
    if (out != out || (in.detail & kMaximum ? above : below)) out = value;
  });
  const bool is_nan = out != out || (any_nan && in.detail & kNanWins);
  const uint32_t bits = is_nan ? 0x7fffffff : std::bit_cast<uint32_t>(out);
  for_lanes(s.active, [&](uint32_t i) { set_lane(s, in.d[0], i, bits); });
  mark_written(s, in.d[0], s.active, undefined(s, in.s[0]) & s.active ? kAllLanes : 0);
}

// Of those that make lanes wait, the only one that also orders their memory accesses.
void warp_barrier(Step& s, const Instruction& in) {
  const uint32_t members = member_mask(s, in.s[0]);
  if (!gathered(s, members) || !s.cta.cluster->races || !(members & (members - 1))) return;
  s.cta.cluster->races->sync_lanes(s.warp.agent);
  s.machine.global_races()->sync_lanes(s.cta.cluster->number, s.warp.agent);
}

}  // namespace

void decode_elect(Decoder& d) {
  const Operand& to = d.operand(0);
  if (to.kind != Operand::Kind::kPair) d.fail("writes d|p");
  d.destination(to.parts[0], Type::k_b32);
  d.destination(to.parts[1], Type::k_pred);
  d.source(1, Type::k_b32);
  d.out.flags |= kMayPark;
  d.out.execute = elect;
}

void decode_shfl(Decoder& d) {
  const Operand& to = d.operand(0);
  const bool dual = to.kind == Operand::Kind::kPair;
  d.destination(dual ? to.parts[0] : to, Type::k_b32);
  if (dual) d.destination(to.parts[1], Type::k_pred);
  for (size_t i = 1; i < 5; ++i) d.source(i, Type::k_b32);
  d.out.target = uint32_t(d.has("up")     ? Shuffle::kUp
                          : d.has("down") ? Shuffle::kDown
                          : d.has("bfly") ? Shuffle::kButterfly
                                          : Shuffle::kIndex);
  d.out.flags |= kMayPark;
  d.out.execute = shuffle;
}

void decode_vote(Decoder& d) {
  const bool ballot = d.has("ballot");
  d.destination(0, ballot ? Type::k_b32 : Type::k_pred);
  Operand value = d.operand(1);
  d.out.detail = value.negated;
  value.negated = false;
  d.source(value, Type::k_pred);
  if (d.has("sync")) d.source(2, Type::k_b32);
  d.out.target = uint32_t(ballot         ? Vote::kBallot
                          : d.has("all") ? Vote::kAll
                          : d.has("any") ? Vote::kAny
                                         : Vote::kUniform);
  d.out.flags |= kMayPark;
  d.out.execute = vote;
}

void decode_activemask(Decoder& d) {
  d.destination(0, Type::k_b32);
  d.out.execute = active_mask;
}

void decode_match(Decoder& d) {
  const Operand& to = d.operand(0);
  const bool dual = to.kind == Operand::Kind::kPair;
  d.destination(dual ? to.parts[0] : to, Type::k_b32);
  if (dual) d.destination(to.parts[1], Type::k_pred);
  d.source(1, d.type());
  d.source(2, Type::k_b32);
  d.out.target = d.has("all");
  d.out.flags |= kMayPark;
  d.out.execute = match;
}

void decode_redux(Decoder& d) {
  const Type type = d.type();
  d.destination(0, type);
  d.source(1, type);
  d.source(2, Type::k_b32);
  d.out.flags |= kMayPark;
  if (type == Type::k_f32) {
    if (d.has("min") == d.has("max")) d.fail("reduces f32 by .min or .max only");
    d.out.detail = d.bits_if("abs", kAbs) | d.bits_if("NaN", kNanWins) | d.bits_if("max", kMaximum);
    d.out.execute = reduce_float;
    return;
  }
  if (d.has("abs") || d.has("NaN")) d.fail("takes .abs and .NaN with .f32 only");
  const bool is_s = type == Type::k_s32;
  d.out.execute = d.has("add")   ? reduce<&reduce_add>
                  : d.has("and") ? reduce<&reduce_and>
                  : d.has("or")  ? reduce<&reduce_or>
                  : d.has("xor") ? reduce<&reduce_xor>
                  : d.has("min") ? (is_s ? reduce<&reduce_min<int32_t>> : reduce<&reduce_min<uint32_t>>)
                                 : (is_s ? reduce<&reduce_max<int32_t>> : reduce<&reduce_max<uint32_t>>);
}
void decode_bar_warp(Decoder& d) {
  d.source(0, Type::k_b32);
  d.out.flags |= kMayPark;
  d.out.execute = warp_barrier;
}

}  // namespace jaxbw::emulator
