// What the lanes of a warp do together. `members` are the lanes that take part; the others skip the instruction.
#include "common.cuh"

namespace jaxbw::calibration {

JAXBW_DEVICE bool is_member(uint32_t members) { return members >> lane_index() & 1; }

extern "C" __global__ void elect(uint32_t members, uint32_t* out) {
  if (!is_member(members)) return;
  uint32_t leader, elected;
  asm volatile("{\n\t.reg .pred p;\n\telect.sync %0|p, %2;\n\tselp.u32 %1, 1, 0, p;\n\t}"
               : "=r"(leader), "=r"(elected)
               : "r"(members));
  out[2 * lane_index()] = leader;
  out[2 * lane_index() + 1] = elected;
}

#define DEFINE_SHUFFLE(MODE)                                                                                         \
  extern "C" __global__ void shfl_##MODE(uint32_t members, const uint32_t* values, const uint32_t* b,                \
                                         const uint32_t* c, uint32_t* out) {                                         \
    if (!is_member(members)) return;                                                                                 \
    const uint32_t lane = lane_index();                                                                              \
    uint32_t value, in_range;                                                                                        \
    asm volatile("{\n\t.reg .pred p;\n\tshfl.sync." #MODE ".b32 %0|p, %2, %3, %4, %5;\n\tselp.u32 %1, 1, 0, p;\n\t}" \
                 : "=r"(value), "=r"(in_range)                                                                       \
                 : "r"(values[lane]), "r"(b[lane]), "r"(c[lane]), "r"(members));                                     \
    out[2 * lane] = value;                                                                                           \
    out[2 * lane + 1] = in_range;                                                                                    \
  }
DEFINE_SHUFFLE(up)
DEFINE_SHUFFLE(down)
DEFINE_SHUFFLE(bfly)
DEFINE_SHUFFLE(idx)

#define VOTE(MODE, slot)                                                             \
  {                                                                                  \
    uint32_t result;                                                                 \
    asm volatile("{\n\t.reg .pred p, q;\n\tsetp.ne.u32 p, %1, 0;\n\tvote.sync." MODE \
                 ".pred q, p, %2;\n\t"                                               \
                 "selp.u32 %0, 1, 0, q;\n\t}"                                        \
                 : "=r"(result)                                                      \
                 : "r"(values[lane]), "r"(members));                                 \
    out[8 * lane + slot] = result;                                                   \
  }
extern "C" __global__ void vote(uint32_t members, const uint32_t* values, uint32_t* out) {
  if (!is_member(members)) return;
  const uint32_t lane = lane_index();
  VOTE("all", 0)
  VOTE("any", 1)
  VOTE("uni", 2)
  uint32_t ballot, any, all, same;
  asm volatile("{\n\t.reg .pred p;\n\tsetp.ne.u32 p, %1, 0;\n\tvote.sync.ballot.b32 %0, p, %2;\n\t}"
               : "=r"(ballot)
               : "r"(values[lane]), "r"(members));
  out[8 * lane + 3] = ballot;
  asm volatile("match.any.sync.b32 %0, %1, %2;" : "=r"(any) : "r"(values[lane]), "r"(members));
  out[8 * lane + 4] = any;
  asm volatile("{\n\t.reg .pred p;\n\tmatch.all.sync.b32 %0|p, %2, %3;\n\tselp.u32 %1, 1, 0, p;\n\t}"
               : "=r"(all), "=r"(same)
               : "r"(values[lane]), "r"(members));
  out[8 * lane + 5] = all;
  out[8 * lane + 6] = same;
}

#define REDUX(MODE, slot)                                                                             \
  {                                                                                                   \
    uint32_t result;                                                                                  \
    asm volatile("redux.sync." MODE " %0, %1, %2;" : "=r"(result) : "r"(values[lane]), "r"(members)); \
    out[8 * lane + slot] = result;                                                                    \
  }
extern "C" __global__ void redux(uint32_t members, const uint32_t* values, uint32_t* out) {
  if (!is_member(members)) return;
  const uint32_t lane = lane_index();
  REDUX("add.u32", 0)
  REDUX("min.u32", 1)
  REDUX("max.u32", 2)
  REDUX("min.s32", 3)
  REDUX("max.s32", 4)
  REDUX("and.b32", 5)
  REDUX("or.b32", 6)
  REDUX("xor.b32", 7)
}

// Reductions over all threads of a named barrier (PTX 9.7.13.1).
extern "C" __global__ void barrier_reductions(const uint32_t* values, uint32_t* out) {
  uint32_t count, all, any;
  asm volatile("{\n\t.reg .pred p;\n\tsetp.ne.u32 p, %1, 0;\n\tbarrier.cta.red.popc.aligned.u32 %0, 1, p;\n\t}"
               : "=r"(count)
               : "r"(values[threadIdx.x])
               : "memory");
  asm volatile(
      "{\n\t.reg .pred p, q;\n\tsetp.ne.u32 p, %1, 0;\n\tbarrier.cta.red.and.aligned.pred q, 2, p;\n\t"
      "selp.u32 %0, 1, 0, q;\n\t}"
      : "=r"(all)
      : "r"(values[threadIdx.x])
      : "memory");
  asm volatile(
      "{\n\t.reg .pred p, q;\n\tsetp.ne.u32 p, %1, 0;\n\tbarrier.cta.red.or.aligned.pred q, 3, p;\n\t"
      "selp.u32 %0, 1, 0, q;\n\t}"
      : "=r"(any)
      : "r"(values[threadIdx.x])
      : "memory");
  uint32_t* to = out + 3 * threadIdx.x;
  to[0] = count, to[1] = all, to[2] = any;
}

}  // namespace jaxbw::calibration
