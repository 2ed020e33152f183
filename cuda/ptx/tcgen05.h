// The fifth-generation tensor core of sm_100 (PTX 9.7.16): Tensor Memory, MMA and their ordering.
//
// Tensor Memory is 128 lanes x 512 columns of 32 bits; an address is lane << 16 | column.
// kCtaGroup: the CTAs that work as one, 1 or a pair; the same in every instruction of a kernel.
#pragma once

#include "ptx/thread.h"

namespace jaxbw::ptx {

constexpr uint32_t kTmemColumns = 512;

// Allocation (PTX 9.7.16.7.1): by one whole warp, of each CTA of the group; a power of two in 32..512 columns.
// The address is written to shared memory. Blocks until the columns are free.
template <uint32_t kCtaGroup, uint32_t kColumns>
JAXBW_DEVICE void tmem_allocate(uint32_t result) {
  static_assert(kColumns >= 32 && kColumns <= kTmemColumns && (kColumns & (kColumns - 1)) == 0);
  asm volatile("tcgen05.alloc.cta_group::%0.sync.aligned.shared::cta.b32 [%1], %2;" ::"n"(kCtaGroup), "r"(result),
               "n"(kColumns)
               : "memory");
}
template <uint32_t kCtaGroup>
JAXBW_DEVICE void tmem_relinquish_allocation() {
  asm volatile("tcgen05.relinquish_alloc_permit.cta_group::%0.sync.aligned;" ::"n"(kCtaGroup));
}
template <uint32_t kCtaGroup, uint32_t kColumns>
JAXBW_DEVICE void tmem_free(uint32_t address) {
  asm volatile("tcgen05.dealloc.cta_group::%0.sync.aligned.b32 %1, %2;" ::"n"(kCtaGroup), "r"(address), "n"(kColumns)
               : "memory");
}

// Thread synchronisation does not order tensor-core operations by itself: these stand on its two sides
// (PTX 9.7.16.11.1).
JAXBW_DEVICE void tcgen05_fence_before_sync() { asm volatile("tcgen05.fence::before_thread_sync;" ::: "memory"); }
JAXBW_DEVICE void tcgen05_fence_after_sync() { asm volatile("tcgen05.fence::after_thread_sync;" ::: "memory"); }

// D[tmem] (+)= A * B, one k-step of 32 bytes, kind::f16 (PTX 9.7.16.10.9.1). One thread of the leader CTA issues it.
template <uint32_t kCtaGroup>
JAXBW_DEVICE void umma(uint32_t d, uint64_t a, uint64_t b, uint32_t instruction, bool accumulate) {
  asm volatile(
      "{\n\t"
      ".reg .pred p;\n\t"
      "setp.ne.b32 p, %4, 0;\n\t"
      "tcgen05.mma.cta_group::%5.kind::f16 [%0], %1, %2, %3, p;\n\t"
      "}" ::"r"(d),
      "l"(a), "l"(b), "r"(instruction), "r"(static_cast<uint32_t>(accumulate)), "n"(kCtaGroup)
      : "memory");
}

// Arrives once on the barrier at this offset of each CTA of the mask, when the MMAs that this thread has issued are
// complete (PTX 9.7.16.12.1). Implies tcgen05_fence_before_sync.
template <uint32_t kCtaGroup>
JAXBW_DEVICE void umma_commit(uint32_t barrier, uint16_t mask) {
  asm volatile(
      "tcgen05.commit.cta_group::%2.mbarrier::arrive::one.shared::cluster.multicast::cluster.b64 [%0], %1;" ::"r"(
          barrier),
      "h"(mask), "n"(kCtaGroup)
      : "memory");
}

// 32 columns of the warp's 32 lanes into registers: value[i] of lane l is column i of lane l (PTX 9.7.16.2.3.1.1).
// Warp w of a block reaches lanes 32 (w % 4) .. + 31 only. The values may be used after tmem_wait_load.
JAXBW_DEVICE void tmem_load_32_columns(uint32_t (&v)[32], uint32_t address) {
  asm volatile(
      "tcgen05.ld.sync.aligned.32x32b.x32.b32 "
      "{%0, %1, %2, %3, %4, %5, %6, %7, %8, %9, %10, %11, %12, %13, %14, %15, "
      "%16, %17, %18, %19, %20, %21, %22, %23, %24, %25, %26, %27, %28, %29, %30, %31}, [%32];"
      : "=r"(v[0]), "=r"(v[1]), "=r"(v[2]), "=r"(v[3]), "=r"(v[4]), "=r"(v[5]), "=r"(v[6]), "=r"(v[7]), "=r"(v[8]),
        "=r"(v[9]), "=r"(v[10]), "=r"(v[11]), "=r"(v[12]), "=r"(v[13]), "=r"(v[14]), "=r"(v[15]), "=r"(v[16]),
        "=r"(v[17]), "=r"(v[18]), "=r"(v[19]), "=r"(v[20]), "=r"(v[21]), "=r"(v[22]), "=r"(v[23]), "=r"(v[24]),
        "=r"(v[25]), "=r"(v[26]), "=r"(v[27]), "=r"(v[28]), "=r"(v[29]), "=r"(v[30]), "=r"(v[31])
      : "r"(address));
}

// Waits for this thread's Tensor Memory loads (PTX 9.7.16.8). The loaded registers are operands, so that the
// compiler moves no use of them above the wait.
JAXBW_DEVICE void tmem_wait_load(uint32_t (&v)[32]) {
  asm volatile("tcgen05.wait::ld.sync.aligned;"
               : "+r"(v[0]), "+r"(v[1]), "+r"(v[2]), "+r"(v[3]), "+r"(v[4]), "+r"(v[5]), "+r"(v[6]), "+r"(v[7]),
                 "+r"(v[8]), "+r"(v[9]), "+r"(v[10]), "+r"(v[11]), "+r"(v[12]), "+r"(v[13]), "+r"(v[14]), "+r"(v[15]),
                 "+r"(v[16]), "+r"(v[17]), "+r"(v[18]), "+r"(v[19]), "+r"(v[20]), "+r"(v[21]), "+r"(v[22]), "+r"(v[23]),
                 "+r"(v[24]), "+r"(v[25]), "+r"(v[26]), "+r"(v[27]), "+r"(v[28]), "+r"(v[29]), "+r"(v[30]), "+r"(v[31])
               :
               : "memory");
}

}  // namespace jaxbw::ptx
