#include "clocks.h"

#include <algorithm>

namespace jaxbw::emulator {

void VectorClock::join(const VectorClock& other, AgentId first) {
  if (times_.size() < other.times_.size()) times_.resize(other.times_.size());
  for (size_t i = first; i < other.times_.size(); ++i) times_[i] = std::max(times_[i], other.times_[i]);
}

VectorClock VectorClock::least(const VectorClock& a, const VectorClock& b) {
  VectorClock out(std::min(a.times_.size(), b.times_.size()));
  for (size_t i = 0; i < out.times_.size(); ++i) out.times_[i] = std::min(a.times_[i], b.times_[i]);
  return out;
}

void Clocks::join(const Clocks& other) {
  seen.join(other.seen);
  fenced.join(other.fenced);
  tmem.join(other.tmem);
  read.join(other.read);
  tmem_read.join(other.tmem_read);
}

void SyncClocks::finish_phase() {
  complete.seen.join(arriving.seen);
  complete.fenced.join(arriving.fenced);
  complete.tmem.join(arriving.tmem);
}

}  // namespace jaxbw::emulator
