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

// What the operands are: f16 or bf16; e4m3 or e5m2, each its own; or float32 that is multiplied as TF32
// (PTX 9.7.16.2.1). kMx8Bit: e4m3 or e5m2, with a scale for each block of 32 along K. Of e2m1 kMx4Bit has the same, and
// kNv4Bit one for each 16.
enum class UmmaKind : uint32_t { k16Bit, k8Bit, kTf32, kMx8Bit, kMx4Bit, kNv4Bit };

// D[tmem] (+)= A * B, one k-step of 32 bytes (PTX 9.7.16.10.9.1). One thread of the leader CTA issues it.
template <uint32_t kCtaGroup, UmmaKind kKind>
JAXBW_DEVICE void umma(uint32_t d, uint64_t a, uint64_t b, uint32_t instruction, bool accumulate) {
#define JAXBW_UMMA(KIND)                                                                       \
  asm volatile(                                                                                \
      "{\n\t"                                                                                  \
      ".reg .pred p;\n\t"                                                                      \
      "setp.ne.b32 p, %4, 0;\n\t"                                                              \
      "tcgen05.mma.cta_group::%5.kind::" KIND                                                  \
      " [%0], %1, %2, %3, p;\n\t"                                                              \
      "}" ::"r"(d),                                                                            \
      "l"(a), "l"(b), "r"(instruction), "r"(static_cast<uint32_t>(accumulate)), "n"(kCtaGroup) \
      : "memory")
  if constexpr (kKind == UmmaKind::k16Bit) {
    JAXBW_UMMA("f16");
  } else if constexpr (kKind == UmmaKind::k8Bit) {
    JAXBW_UMMA("f8f6f4");
  } else {
    JAXBW_UMMA("tf32");
  }
#undef JAXBW_UMMA
}

// The same of the kinds whose scales lie in Tensor Memory. The instruction says in which bytes of their cells.
template <uint32_t kCtaGroup, UmmaKind kKind>
JAXBW_DEVICE void umma_scaled(uint32_t d, uint64_t a, uint64_t b, uint32_t instruction, uint32_t a_scales,
                              uint32_t b_scales, bool accumulate) {
#define JAXBW_UMMA(KIND)                                                                                      \
  asm volatile(                                                                                               \
      "{\n\t"                                                                                                 \
      ".reg .pred p;\n\t"                                                                                     \
      "setp.ne.b32 p, %6, 0;\n\t"                                                                             \
      "tcgen05.mma.cta_group::%7.kind::" KIND                                                                 \
      " [%0], %1, %2, %3, [%4], [%5], p;\n\t"                                                                 \
      "}" ::"r"(d),                                                                                           \
      "l"(a), "l"(b), "r"(instruction), "r"(a_scales), "r"(b_scales), "r"(static_cast<uint32_t>(accumulate)), \
      "n"(kCtaGroup)                                                                                          \
      : "memory")
  if constexpr (kKind == UmmaKind::kMx8Bit) {
    JAXBW_UMMA("mxf8f6f4.block_scale.block32");
  } else if constexpr (kKind == UmmaKind::kMx4Bit) {
    JAXBW_UMMA("mxf4nvf4.block_scale.block32");
  } else {
    static_assert(kKind == UmmaKind::kNv4Bit);
    JAXBW_UMMA("mxf4nvf4.block_scale.block16");
  }
#undef JAXBW_UMMA
}

// Copies 32 rows of 16 bytes from each CTA's shared memory to four columns of its Tensor Memory, row r to the lanes r,
// r + 32, r + 64 and r + 96 (PTX 9.7.16.9.2). MMAs that the thread issues later come after it.
template <uint32_t kCtaGroup>
JAXBW_DEVICE void tmem_copy_scales(uint32_t address, uint64_t source) {
  asm volatile("tcgen05.cp.cta_group::%2.32x128b.warpx4 [%0], %1;" ::"r"(address), "l"(source), "n"(kCtaGroup)
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

// 64, 32, 16 or 8 columns of the warp's 32 lanes into registers: value[i] of lane l is column i of lane l (PTX
// 9.7.16.2.3.1.1). Warp w of a block reaches lanes 32 (w % 4) .. + 31 only. The values may be used after
// tmem_wait_load.
JAXBW_DEVICE void tmem_load(float (&v)[64], uint32_t address) {
  asm volatile(
      "tcgen05.ld.sync.aligned.32x32b.x64.b32 {%0, %1, %2, %3, %4, %5, %6, %7, %8, %9, %10, %11, %12, %13, %14, %15, "
      "%16, %17, %18, %19, %20, %21, %22, %23, %24, %25, %26, %27, %28, %29, %30, %31, %32, %33, %34, %35, %36, %37, "
      "%38, %39, %40, %41, %42, %43, %44, %45, %46, %47, %48, %49, %50, %51, %52, %53, %54, %55, %56, %57, %58, %59, "
      "%60, %61, %62, %63}, [%64];"
      : "=f"(v[0]), "=f"(v[1]), "=f"(v[2]), "=f"(v[3]), "=f"(v[4]), "=f"(v[5]), "=f"(v[6]), "=f"(v[7]), "=f"(v[8]),
        "=f"(v[9]), "=f"(v[10]), "=f"(v[11]), "=f"(v[12]), "=f"(v[13]), "=f"(v[14]), "=f"(v[15]), "=f"(v[16]),
        "=f"(v[17]), "=f"(v[18]), "=f"(v[19]), "=f"(v[20]), "=f"(v[21]), "=f"(v[22]), "=f"(v[23]), "=f"(v[24]),
        "=f"(v[25]), "=f"(v[26]), "=f"(v[27]), "=f"(v[28]), "=f"(v[29]), "=f"(v[30]), "=f"(v[31]), "=f"(v[32]),
        "=f"(v[33]), "=f"(v[34]), "=f"(v[35]), "=f"(v[36]), "=f"(v[37]), "=f"(v[38]), "=f"(v[39]), "=f"(v[40]),
        "=f"(v[41]), "=f"(v[42]), "=f"(v[43]), "=f"(v[44]), "=f"(v[45]), "=f"(v[46]), "=f"(v[47]), "=f"(v[48]),
        "=f"(v[49]), "=f"(v[50]), "=f"(v[51]), "=f"(v[52]), "=f"(v[53]), "=f"(v[54]), "=f"(v[55]), "=f"(v[56]),
        "=f"(v[57]), "=f"(v[58]), "=f"(v[59]), "=f"(v[60]), "=f"(v[61]), "=f"(v[62]), "=f"(v[63])
      : "r"(address));
}
JAXBW_DEVICE void tmem_load(float (&v)[32], uint32_t address) {
  asm volatile(
      "tcgen05.ld.sync.aligned.32x32b.x32.b32 {%0, %1, %2, %3, %4, %5, %6, %7, %8, %9, %10, %11, %12, %13, %14, %15, "
      "%16, %17, %18, %19, %20, %21, %22, %23, %24, %25, %26, %27, %28, %29, %30, %31}, [%32];"
      : "=f"(v[0]), "=f"(v[1]), "=f"(v[2]), "=f"(v[3]), "=f"(v[4]), "=f"(v[5]), "=f"(v[6]), "=f"(v[7]), "=f"(v[8]),
        "=f"(v[9]), "=f"(v[10]), "=f"(v[11]), "=f"(v[12]), "=f"(v[13]), "=f"(v[14]), "=f"(v[15]), "=f"(v[16]),
        "=f"(v[17]), "=f"(v[18]), "=f"(v[19]), "=f"(v[20]), "=f"(v[21]), "=f"(v[22]), "=f"(v[23]), "=f"(v[24]),
        "=f"(v[25]), "=f"(v[26]), "=f"(v[27]), "=f"(v[28]), "=f"(v[29]), "=f"(v[30]), "=f"(v[31])
      : "r"(address));
}
JAXBW_DEVICE void tmem_load(float (&v)[16], uint32_t address) {
  asm volatile(
      "tcgen05.ld.sync.aligned.32x32b.x16.b32 {%0, %1, %2, %3, %4, %5, %6, %7, %8, %9, %10, %11, %12, %13, %14, %15}, "
      "[%16];"
      : "=f"(v[0]), "=f"(v[1]), "=f"(v[2]), "=f"(v[3]), "=f"(v[4]), "=f"(v[5]), "=f"(v[6]), "=f"(v[7]), "=f"(v[8]),
        "=f"(v[9]), "=f"(v[10]), "=f"(v[11]), "=f"(v[12]), "=f"(v[13]), "=f"(v[14]), "=f"(v[15])
      : "r"(address));
}
JAXBW_DEVICE void tmem_load(float (&v)[8], uint32_t address) {
  asm volatile("tcgen05.ld.sync.aligned.32x32b.x8.b32 {%0, %1, %2, %3, %4, %5, %6, %7}, [%8];"
               : "=f"(v[0]), "=f"(v[1]), "=f"(v[2]), "=f"(v[3]), "=f"(v[4]), "=f"(v[5]), "=f"(v[6]), "=f"(v[7])
               : "r"(address));
}

// Waits for this thread's Tensor Memory loads (PTX 9.7.16.8). The loaded registers are operands, so that the
// compiler moves no use of them above the wait.
JAXBW_DEVICE void tmem_wait_load(float (&v)[64]) {
  asm volatile("tcgen05.wait::ld.sync.aligned;"
               : "+f"(v[0]), "+f"(v[1]), "+f"(v[2]), "+f"(v[3]), "+f"(v[4]), "+f"(v[5]), "+f"(v[6]), "+f"(v[7]),
                 "+f"(v[8]), "+f"(v[9]), "+f"(v[10]), "+f"(v[11]), "+f"(v[12]), "+f"(v[13]), "+f"(v[14]), "+f"(v[15]),
                 "+f"(v[16]), "+f"(v[17]), "+f"(v[18]), "+f"(v[19]), "+f"(v[20]), "+f"(v[21]), "+f"(v[22]), "+f"(v[23]),
                 "+f"(v[24]), "+f"(v[25]), "+f"(v[26]), "+f"(v[27]), "+f"(v[28]), "+f"(v[29]), "+f"(v[30]), "+f"(v[31]),
                 "+f"(v[32]), "+f"(v[33]), "+f"(v[34]), "+f"(v[35]), "+f"(v[36]), "+f"(v[37]), "+f"(v[38]), "+f"(v[39]),
                 "+f"(v[40]), "+f"(v[41]), "+f"(v[42]), "+f"(v[43]), "+f"(v[44]), "+f"(v[45]), "+f"(v[46]), "+f"(v[47]),
                 "+f"(v[48]), "+f"(v[49]), "+f"(v[50]), "+f"(v[51]), "+f"(v[52]), "+f"(v[53]), "+f"(v[54]), "+f"(v[55]),
                 "+f"(v[56]), "+f"(v[57]), "+f"(v[58]), "+f"(v[59]), "+f"(v[60]), "+f"(v[61]), "+f"(v[62]), "+f"(v[63])
               :
               : "memory");
}
JAXBW_DEVICE void tmem_wait_load(float (&v)[32]) {
  asm volatile("tcgen05.wait::ld.sync.aligned;"
               : "+f"(v[0]), "+f"(v[1]), "+f"(v[2]), "+f"(v[3]), "+f"(v[4]), "+f"(v[5]), "+f"(v[6]), "+f"(v[7]),
                 "+f"(v[8]), "+f"(v[9]), "+f"(v[10]), "+f"(v[11]), "+f"(v[12]), "+f"(v[13]), "+f"(v[14]), "+f"(v[15]),
                 "+f"(v[16]), "+f"(v[17]), "+f"(v[18]), "+f"(v[19]), "+f"(v[20]), "+f"(v[21]), "+f"(v[22]), "+f"(v[23]),
                 "+f"(v[24]), "+f"(v[25]), "+f"(v[26]), "+f"(v[27]), "+f"(v[28]), "+f"(v[29]), "+f"(v[30]), "+f"(v[31])
               :
               : "memory");
}
JAXBW_DEVICE void tmem_wait_load(float (&v)[16]) {
  asm volatile("tcgen05.wait::ld.sync.aligned;"
               : "+f"(v[0]), "+f"(v[1]), "+f"(v[2]), "+f"(v[3]), "+f"(v[4]), "+f"(v[5]), "+f"(v[6]), "+f"(v[7]),
                 "+f"(v[8]), "+f"(v[9]), "+f"(v[10]), "+f"(v[11]), "+f"(v[12]), "+f"(v[13]), "+f"(v[14]), "+f"(v[15])
               :
               : "memory");
}
JAXBW_DEVICE void tmem_wait_load(float (&v)[8]) {
  asm volatile("tcgen05.wait::ld.sync.aligned;"
               : "+f"(v[0]), "+f"(v[1]), "+f"(v[2]), "+f"(v[3]), "+f"(v[4]), "+f"(v[5]), "+f"(v[6]), "+f"(v[7])
               :
               : "memory");
}

}  // namespace jaxbw::ptx
