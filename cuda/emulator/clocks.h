// Vector clocks: what of every agent's past is ordered before something (Lamport; Mattern, 1989).
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

namespace jaxbw::emulator {

using AgentId = uint16_t;
constexpr AgentId kNoAgent = 0xffff;

class VectorClock {
 public:
  explicit VectorClock(size_t agents = 0) : times_(agents) {}
  uint32_t operator[](AgentId agent) const { return agent < times_.size() ? times_[agent] : 0; }
  void set(AgentId agent, uint32_t time) {
    if (agent >= times_.size()) times_.resize(agent + 1);
    times_[agent] = time;
  }
  void raise(AgentId agent, uint32_t time) {
    if (time > (*this)[agent]) set(agent, time);
  }
  // Joins the entries of agents >= first.
  void join(const VectorClock& other, AgentId first = 0);
  static VectorClock least(const VectorClock& a, const VectorClock& b);  // entry by entry

 private:
  std::vector<uint32_t> times_;
};

// What an agent knows, for the several kinds of accesses (races.h).
struct Clocks {
  VectorClock seen, fenced, tmem;
  VectorClock read, tmem_read;

  void join(const Clocks& other);
};

// What a barrier carries from those who arrive to those who wait: so far in this phase, and of the phases that are
// over.
struct SyncClocks {
  Clocks arriving, complete;
  void finish_phase();
};

}  // namespace jaxbw::emulator
