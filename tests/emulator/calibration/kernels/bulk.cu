// Bulk copies and reductions without a tensor map (PTX 9.7.9.25.4).
#include "common.cuh"

namespace jaxbw::calibration {

JAXBW_DEVICE void wait_for_stores() {
  bulk_commit_group();
  asm volatile("cp.async.bulk.wait_group 0;" ::: "memory");
}

// Global -> shared (counted on an mbarrier) -> global, at an offset on either side.
extern "C" __global__ void bulk_round_trip(const uint8_t* source, uint32_t offset, uint32_t bytes, uint32_t region,
                                           uint8_t* destination, uint32_t* out) {
  const uint32_t base = shared_address(shared_words), barrier = base + region;
  fill_shared(region);
  if (threadIdx.x == 0) mbarrier_init(barrier, 1);
  fence_mbarrier_init();
  fence_proxy_async();
  __syncthreads();
  if (threadIdx.x == 0) {
    mbarrier_arrive_expect_tx(barrier, bytes);
    asm volatile(
        "cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes [%0], [%1], %2, [%3];" ::"r"(base + offset),
        "l"(source), "r"(bytes), "r"(barrier)
        : "memory");
  }
  const bool complete = phase_completes(barrier, 0);
  write_from_shared(out, region);
  if (threadIdx.x == 0) {
    out[region / 4] = complete;
    asm volatile("cp.async.bulk.global.shared::cta.bulk_group [%0], [%1], %2;" ::"l"(destination), "r"(base + offset),
                 "r"(bytes)
                 : "memory");
    wait_for_stores();
  }
}

// Two stores in two groups: waiting for all but the youngest leaves the older one complete, waiting for its reads
// allows its source to be overwritten.
extern "C" __global__ void bulk_groups(uint32_t* destination) {
  const uint32_t base = shared_address(shared_words);
  if (threadIdx.x == 0) {
    for (uint32_t group = 0; group < 4; ++group) {
      if (group >= 2) bulk_wait_group_read<1>();
      for (uint32_t i = 0; i < 64; ++i) shared_words[group % 2 * 64 + i] = group << 16 | i;
      fence_proxy_async();
      asm volatile("cp.async.bulk.global.shared::cta.bulk_group [%0], [%1], 256;" ::"l"(destination + group * 64),
                   "r"(base + group % 2 * 256)
                   : "memory");
      bulk_commit_group();
    }
    asm volatile("cp.async.bulk.wait_group 0;" ::: "memory");
  }
}

#define DEFINE_REDUCE(NAME, SUFFIX)                                                                                    \
  extern "C" __global__ void bulk_reduce_##NAME(const uint32_t* source, uint32_t bytes, uint8_t* destination) {        \
    read_into_shared(source, bytes);                                                                                   \
    fence_proxy_async();                                                                                               \
    __syncthreads();                                                                                                   \
    if (threadIdx.x == 0) {                                                                                            \
      asm volatile("cp.reduce.async.bulk.global.shared::cta.bulk_group." SUFFIX " [%0], [%1], %2;" ::"l"(destination), \
                   "r"(shared_address(shared_words)), "r"(bytes)                                                       \
                   : "memory");                                                                                        \
      wait_for_stores();                                                                                               \
    }                                                                                                                  \
  }
DEFINE_REDUCE(add_u32, "add.u32")
DEFINE_REDUCE(add_s32, "add.s32")
DEFINE_REDUCE(add_u64, "add.u64")
DEFINE_REDUCE(add_f16, "add.noftz.f16")
DEFINE_REDUCE(add_bf16, "add.noftz.bf16")
DEFINE_REDUCE(add_f32, "add.f32")
DEFINE_REDUCE(add_f64, "add.f64")
DEFINE_REDUCE(min_f16, "min.f16")
DEFINE_REDUCE(max_f16, "max.f16")
DEFINE_REDUCE(min_bf16, "min.bf16")
DEFINE_REDUCE(max_bf16, "max.bf16")
DEFINE_REDUCE(min_s32, "min.s32")
DEFINE_REDUCE(max_u64, "max.u64")
DEFINE_REDUCE(min_s64, "min.s64")
DEFINE_REDUCE(inc_u32, "inc.u32")
DEFINE_REDUCE(dec_u32, "dec.u32")
DEFINE_REDUCE(and_b32, "and.b32")
DEFINE_REDUCE(or_b64, "or.b64")
DEFINE_REDUCE(xor_b32, "xor.b32")

}  // namespace jaxbw::calibration
