#include "global_races.h"

#include <algorithm>

namespace jaxbw::emulator {
namespace {

constexpr size_t kMoreAccesses = 16;  // remembered beside a chunk

bool same_agent(const GlobalRaces::Access& a, const GlobalRaces::Access& b) {
  return a.cluster == b.cluster && a.agent == b.agent;
}

RaceDetector::Access in_cluster(const GlobalRaces::Access& access) {
  return {
      .time = access.time, .line = access.line, .lane = access.lane, .agent = access.agent, .async = access.async != 0};
}

}  // namespace

GlobalRaces::Chunk& GlobalRaces::chunk(uint64_t index) {
  const uint64_t page = index / kPageChunks;
  if (page != last_page_) {
    std::unique_ptr<Page>& owned = pages_[page];
    if (!owned) owned = std::make_unique<Page>();
    last_ = owned.get();
    last_page_ = page;
  }
  return (*last_)[index % kPageChunks];
}

std::optional<GlobalRaces::Access> GlobalRaces::touch(const RaceDetector& races, Access access, uint64_t address,
                                                      uint64_t bytes) {
  access.time = races.time(access.agent);
  std::optional<Access> race;
  for (const uint64_t end = address + bytes; address < end;) {
    const uint64_t first = address % kChunkBytes, count = std::min(kChunkBytes - first, end - address);
    access.mask = uint16_t(((1u << count) - 1) << first);
    check(races, address / kChunkBytes, access, race);
    address += count;
  }
  return race;
}

bool GlobalRaces::ordered(const RaceDetector& races, const Access& before, const Access& now) const {
  if (before.cluster == now.cluster &&
      races.ordered_after(in_cluster(before), before.writes, in_cluster(now), now.writes))
    return true;
  if (clusters_.empty()) return false;
  const auto cluster = clusters_.find(now.cluster);
  if (cluster == clusters_.end()) return false;
  const auto known_in = [&](const Knowledge& knowledge) {
    const auto known = knowledge.find(before.cluster);
    const bool crosses = !before.async && now.async && races.needs_proxy_fence(now.writes);
    return known != knowledge.end() &&
           races.knows(crosses ? known->second.fenced : known->second.seen, in_cluster(before));
  };
  const auto first = cluster->second.first_lanes.find(now.warp);
  return known_in(cluster->second.acquired) ||
         ((now.async || now.lane == 0) && first != cluster->second.first_lanes.end() && known_in(first->second));
}

void GlobalRaces::check(const RaceDetector& races, uint64_t index, const Access& now, std::optional<Access>& race) {
  Chunk& at = chunk(index);
  // Lanes of a warp that have parted store for each other what one bulk store of all would store once. What compilers
  // have all threads store is there in whatever order.
  const auto repeated = [&](const Access& before) {
    const bool one_warp = before.async && before.cluster == now.cluster && before.warp == now.warp;
    return now.repeats && before.writes && before.line == now.line &&
           (one_warp || (!before.async && !now.async && races.rules() == RaceRules::kHardware));
  };
  const auto visit = [&](Access& before) {
    if (!(before.mask & now.mask)) return;
    if ((before.writes || now.writes) && !(before.strong && now.strong) && !race && !repeated(before) &&
        !ordered(races, before, now))
      race = before;
    // What comes after a weak write, and is ordered, is ordered after what was before it.
    if (now.writes && !now.strong) before.mask &= uint16_t(~now.mask);
  };
  visit(at.write);
  if (now.writes) {
    visit(at.read);
    visit(at.foreign_read);
  }
  if (at.more) {
    std::vector<Access>& more = more_[index];
    for (Access& before : more) visit(before);
    std::erase_if(more, [](const Access& before) { return before.mask == 0; });
  }
  remember(races, index, at, now);
}

void GlobalRaces::remember(const RaceDetector& races, uint64_t index, Chunk& at, const Access& now) {
  const bool foreign = !now.writes && at.read.mask && at.read.cluster != now.cluster;
  Access& place = now.writes ? at.write : foreign ? at.foreign_read : at.read;
  const bool covers = !(place.mask & ~now.mask);
  if (place.mask == 0 || (covers && !now.writes && (foreign || same_agent(place, now) || ordered(races, place, now)))) {
    place = now;
  } else if (same_agent(place, now) && place.time == now.time && place.strong == now.strong) {
    place.mask |= now.mask;
    place.line = now.line;
    if (place.lane != now.lane) place.lane = kAnyLane;
  } else {
    std::vector<Access>& more = more_[index];
    if (more.size() == kMoreAccesses) more.erase(more.begin());
    more.push_back(now);
    at.more = true;
  }
}

// --- synchronisation

void GlobalRaces::join(Knowledge& to, const Knowledge& from) {
  for (const auto& [cluster, known] : from) {
    to[cluster].seen.join(known.seen);
    to[cluster].fenced.join(known.fenced);
  }
}

void GlobalRaces::fence(uint32_t cluster, const Clocks& known) {
  ClusterState& state = clusters_[cluster];
  state.fenced.seen.join(known.seen);
  state.fenced.fenced.join(known.fenced);
  join(state.acquired, state.unacquired);
}

void GlobalRaces::strong_write(uint32_t cluster, Actor who, const Clocks& known, uint64_t address, bool release) {
  ClusterState& state = clusters_[cluster];
  Knowledge& location = published_[address];
  join(location, state.acquired);
  const auto first = state.first_lanes.find(who.warp);
  if (first != state.first_lanes.end()) join(location, first->second);
  Known& own = location[cluster];
  own.seen.join(release ? known.seen : VectorClock::least(known.seen, state.fenced.seen));
  own.fenced.join(release ? known.fenced : VectorClock::least(known.fenced, state.fenced.fenced));
}

void GlobalRaces::strong_read(uint32_t cluster, Actor who, uint64_t address, bool acquire) {
  const auto location = published_.find(address);
  if (location == published_.end()) return;
  ClusterState& state = clusters_[cluster];
  join(!acquire                     ? state.unacquired
       : who.lanes == Lanes::kFirst ? state.first_lanes[who.warp]
                                    : state.acquired,
       location->second);
}

void GlobalRaces::sync_lanes(uint32_t cluster, AgentId warp) {
  if (clusters_.empty()) return;
  const auto state = clusters_.find(cluster);
  if (state == clusters_.end()) return;
  const auto first = state->second.first_lanes.find(warp);
  if (first == state->second.first_lanes.end()) return;
  join(state->second.acquired, first->second);
  state->second.first_lanes.erase(first);
}

void GlobalRaces::fence_proxy(uint32_t cluster) {
  const auto state = clusters_.find(cluster);
  if (state == clusters_.end()) return;
  for (auto& [other, known] : state->second.acquired) known.fenced = known.seen;
  for (auto& [warp, knowledge] : state->second.first_lanes)
    for (auto& [other, known] : knowledge) known.fenced = known.seen;
}

}  // namespace jaxbw::emulator
