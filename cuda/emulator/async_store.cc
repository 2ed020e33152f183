// st.async (PTX 9.7.9.12): every lane stores a few bytes from its registers into shared memory of a CTA of the cluster,
// counted on an mbarrier of that CTA.
//
// The stores of a warp land in any order, at any time. The race detector takes them for accesses of the async proxy,
// which asks more of a kernel than the specification does.
#include <cstring>

#include "decoder.h"
#include "lanes.h"
#include "operands.h"

namespace jaxbw::emulator {
namespace {

constexpr uint32_t kMaxBytes = 16;

struct Part {
  Cta* cta;
  uint32_t offset, barrier_offset;
  uint8_t data[kMaxBytes], undefined[kMaxBytes];
};

class AsyncStore final : public Operation {
 public:
  AsyncStore(Step& s, std::vector<Part> parts, uint32_t bytes)
      : Operation(s.line, s.cta), parts_(std::move(parts)), bytes_(bytes) {
    for (const Part& part : parts_) {
      ++part.cta->operations;
      if (s.machine.checking()) std::memset(part.cta->undefined.data() + part.offset, 1, bytes);
    }
    if (RaceDetector* races = s.cta.cluster->races.get()) agent_ = races->begin_operation(actor_of(s));
    s.machine.report().bytes["async store"] += parts_.size() * bytes;
  }

  bool step(Machine& machine) override {
    RaceDetector* races = issuer->cluster->races.get();
    for (uint32_t count = machine.part(uint32_t(parts_.size())); count > 0; --count) {
      const Part part = parts_.back();
      parts_.pop_back();
      machine.touch_shared(*this, agent_, *part.cta, part.offset, bytes_, true);
      std::memcpy(part.cta->shared.data() + part.offset, part.data, bytes_);
      std::memcpy(part.cta->undefined.data() + part.offset, part.undefined, bytes_);
      MBarrier& barrier = machine.mbarrier_of(*part.cta, part.barrier_offset, *this);
      if (races) races->end_operation(agent_, barrier.clocks);
      machine.advance(barrier, barrier.complete(bytes_));
      --part.cta->operations;
    }
    if (!parts_.empty()) return false;
    if (races) races->retire(agent_);
    return true;
  }

 private:
  std::vector<Part> parts_;
  const uint32_t bytes_;
  AgentId agent_ = kNoAgent;
};

void store_async(Step& s, const Instruction& in) {
  check_use(s, in.s[0], "an address");
  check_use(s, in.s[1], "an address");
  const auto& operands = in.statement->operands;
  const uint32_t element = uint32_t(in.detail), bytes = element * uint32_t(in.list.size());
  std::vector<Part> parts;
  for_lanes(s.active, [&](uint32_t lane) {
    const auto find = [&](uint32_t source, uint32_t operand, uint32_t size) {
      return s.machine.locate_shared(s.cta, lane_address(s, in.s[source], operands[operand].bits, lane), size, size);
    };
    const Location to = find(0, 0, bytes), barrier = find(1, 2, 8);
    if (to.cta != barrier.cta) throw Error("the mbarrier must lie in the CTA that st.async writes to");
    Part part{.cta = to.cta, .offset = uint32_t(to.offset), .barrier_offset = uint32_t(barrier.offset)};
    for (uint32_t i = 0; i < in.list.size(); ++i) {
      const uint64_t value = lane_value(s, in.list[i], lane);
      std::memcpy(part.data + i * element, &value, element);
      std::memset(part.undefined + i * element, int(undefined(s, in.list[i]) >> lane & 1), element);
    }
    parts.push_back(part);
  });
  s.machine.issue(std::make_unique<AsyncStore>(s, std::move(parts), bytes));
}

}  // namespace

void decode_async_store(Decoder& d) {
  if (!d.has("shared::cluster") || !d.has("mbarrier::complete_tx::bytes"))
    d.fail("is supported for .shared::cluster, with .mbarrier::complete_tx::bytes");
  d.address(0, Space::kShared);
  d.address(2, Space::kShared);
  const Operand& data = d.operand(1);
  const uint32_t count = d.has("v2") ? 2 : d.has("v4") ? 4 : 1;
  if ((data.kind == Operand::Kind::kVector ? data.parts.size() : 1) != count)
    d.fail("needs a vector of " + std::to_string(count));
  if (count == 1) d.out.list.push_back(d.read(data, d.type(), true));
  if (count > 1)
    for (const Operand& part : data.parts) d.out.list.push_back(d.read(part, d.type(), true));
  d.out.detail = size_bytes(d.type());
  if (d.out.detail * count > kMaxBytes) d.fail("stores at most 16 bytes");
  d.out.execute = store_async;
}

}  // namespace jaxbw::emulator
