#include "global_races.h"

#include <algorithm>

namespace jaxbw::emulator {
namespace {

constexpr size_t kMoreAccesses = 16;  // remembered beside a chunk

bool same_agent(const GlobalRaces::Access& a, const GlobalRaces::Access& b) {
  return a.cluster == b.cluster && a.agent == b.agent;
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
      races.ordered_after(before.agent, before.time, before.async ? Proxy::kAsync : Proxy::kGeneric, before.writes,
                          now.agent, now.async ? Proxy::kAsync : Proxy::kGeneric, now.writes))
    return true;
  if (clusters_.empty()) return false;
  const auto cluster = clusters_.find(now.cluster);
  if (cluster == clusters_.end()) return false;
  const auto known = cluster->second.acquired.find(before.cluster);
  if (known == cluster->second.acquired.end()) return false;
  const bool crosses = !before.async && now.async;
  return before.time <= (crosses ? known->second.fenced : known->second.seen)[before.agent];
}

void GlobalRaces::check(const RaceDetector& races, uint64_t index, const Access& now, std::optional<Access>& race) {
  Chunk& at = chunk(index);
  const auto visit = [&](Access& before) {
    if (!(before.mask & now.mask)) return;
    if ((before.writes || now.writes) && !(before.strong && now.strong) && !race && !ordered(races, before, now))
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

void GlobalRaces::strong_write(uint32_t cluster, const Clocks& known, uint64_t address, bool release) {
  ClusterState& state = clusters_[cluster];
  Knowledge& location = published_[address];
  join(location, state.acquired);
  Known& own = location[cluster];
  own.seen.join(release ? known.seen : VectorClock::least(known.seen, state.fenced.seen));
  own.fenced.join(release ? known.fenced : VectorClock::least(known.fenced, state.fenced.fenced));
}

void GlobalRaces::strong_read(uint32_t cluster, uint64_t address, bool acquire) {
  const auto location = published_.find(address);
  if (location == published_.end()) return;
  ClusterState& state = clusters_[cluster];
  join(acquire ? state.acquired : state.unacquired, location->second);
}

void GlobalRaces::fence_proxy(uint32_t cluster) {
  const auto state = clusters_.find(cluster);
  if (state == clusters_.end()) return;
  for (auto& [other, known] : state->second.acquired) known.fenced = known.seen;
}

}  // namespace jaxbw::emulator
