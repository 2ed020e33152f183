// Asynchronous warpgroup matrix multiply-accumulate of sm_90a (PTX 9.7.15): D[64, N] += A[64, K] * B[K, N] with
// operands of 16 or 8 bits in shared memory, K = 32 bytes, and float accumulators in the registers of four warps.
//
//                   columns 8j + 2 (lane % 4) + {0, 1}
//   accumulator       4j + {0, 1}     row 16 warp + lane / 4
//   register index    4j + {2, 3}     row 16 warp + lane / 4 + 8
#pragma once

#include "params.h"
#include "ptx/thread.h"

namespace jaxbw::ptx {

// Orders register and shared-memory accesses before the following wgmma (PTX 9.7.15.7.1).
JAXBW_DEVICE void wgmma_fence() { asm volatile("wgmma.fence.sync.aligned;" ::: "memory"); }

JAXBW_DEVICE void wgmma_commit_group() { asm volatile("wgmma.commit_group.sync.aligned;" ::: "memory"); }

// Waits until at most kPending of this warp's groups are incomplete.
template <uint32_t kPending>
JAXBW_DEVICE void wgmma_wait_group() {
  asm volatile("wgmma.wait_group.sync.aligned %0;" ::"n"(kPending) : "memory");
}

// The compiler takes an accumulator for written where its wgmma is issued: it must not read one before the wait that
// stands in front of this.
template <uint32_t kCount>
JAXBW_DEVICE void wgmma_fence_registers(float (&accumulators)[kCount]) {
#pragma unroll
  for (float& accumulator : accumulators) asm volatile("" : "+f"(accumulator)::"memory");
}

// m64 x kN x 32 bytes of K. Specialised below for each legal width that the kernel table uses. Operands of 16 bits have
// one type, and any layout; those of 8 bits any two, and are K-major, as TF32 is (kF32, whose low 13 bits are ignored).
template <DataType kA, DataType kB, uint32_t kN>
struct Wgmma;

// The operand list of the instruction names every accumulator register, eight to a row here.
#define JAXBW_NAMES_0 "%0, %1, %2, %3, %4, %5, %6, %7"
#define JAXBW_NAMES_8 "%8, %9, %10, %11, %12, %13, %14, %15"
#define JAXBW_NAMES_16 "%16, %17, %18, %19, %20, %21, %22, %23"
#define JAXBW_NAMES_24 "%24, %25, %26, %27, %28, %29, %30, %31"
#define JAXBW_NAMES_32 "%32, %33, %34, %35, %36, %37, %38, %39"
#define JAXBW_NAMES_40 "%40, %41, %42, %43, %44, %45, %46, %47"
#define JAXBW_NAMES_48 "%48, %49, %50, %51, %52, %53, %54, %55"
#define JAXBW_NAMES_56 "%56, %57, %58, %59, %60, %61, %62, %63"
#define JAXBW_NAMES_64 "%64, %65, %66, %67, %68, %69, %70, %71"
#define JAXBW_NAMES_72 "%72, %73, %74, %75, %76, %77, %78, %79"
#define JAXBW_NAMES_80 "%80, %81, %82, %83, %84, %85, %86, %87"
#define JAXBW_NAMES_88 "%88, %89, %90, %91, %92, %93, %94, %95"
#define JAXBW_NAMES_96 "%96, %97, %98, %99, %100, %101, %102, %103"
#define JAXBW_NAMES_104 "%104, %105, %106, %107, %108, %109, %110, %111"
#define JAXBW_NAMES_112 "%112, %113, %114, %115, %116, %117, %118, %119"
#define JAXBW_NAMES_120 "%120, %121, %122, %123, %124, %125, %126, %127"

#define JAXBW_NAMES_TO_16 JAXBW_NAMES_0 ", " JAXBW_NAMES_8
#define JAXBW_NAMES_TO_32 JAXBW_NAMES_TO_16 ", " JAXBW_NAMES_16 ", " JAXBW_NAMES_24
#define JAXBW_NAMES_TO_48 JAXBW_NAMES_TO_32 ", " JAXBW_NAMES_32 ", " JAXBW_NAMES_40
#define JAXBW_NAMES_TO_64 JAXBW_NAMES_TO_48 ", " JAXBW_NAMES_48 ", " JAXBW_NAMES_56
#define JAXBW_NAMES_TO_80 JAXBW_NAMES_TO_64 ", " JAXBW_NAMES_64 ", " JAXBW_NAMES_72
#define JAXBW_NAMES_TO_96 JAXBW_NAMES_TO_80 ", " JAXBW_NAMES_80 ", " JAXBW_NAMES_88
#define JAXBW_NAMES_TO_128 \
  JAXBW_NAMES_TO_96 ", " JAXBW_NAMES_96 ", " JAXBW_NAMES_104 ", " JAXBW_NAMES_112 ", " JAXBW_NAMES_120

#define JAXBW_FLOATS_8(d, i)                                                                                  \
  "+f"(d[i]), "+f"(d[i + 1]), "+f"(d[i + 2]), "+f"(d[i + 3]), "+f"(d[i + 4]), "+f"(d[i + 5]), "+f"(d[i + 6]), \
      "+f"(d[i + 7])
#define JAXBW_FLOATS_16(d, i) JAXBW_FLOATS_8(d, i), JAXBW_FLOATS_8(d, i + 8)
#define JAXBW_FLOATS_32(d, i) JAXBW_FLOATS_16(d, i), JAXBW_FLOATS_16(d, i + 16)
#define JAXBW_FLOATS_TO_16(d) JAXBW_FLOATS_16(d, 0)
#define JAXBW_FLOATS_TO_32(d) JAXBW_FLOATS_32(d, 0)
#define JAXBW_FLOATS_TO_48(d) JAXBW_FLOATS_TO_32(d), JAXBW_FLOATS_16(d, 32)
#define JAXBW_FLOATS_TO_64(d) JAXBW_FLOATS_TO_32(d), JAXBW_FLOATS_32(d, 32)
#define JAXBW_FLOATS_TO_80(d) JAXBW_FLOATS_TO_64(d), JAXBW_FLOATS_16(d, 64)
#define JAXBW_FLOATS_TO_96(d) JAXBW_FLOATS_TO_80(d), JAXBW_FLOATS_16(d, 80)
#define JAXBW_FLOATS_TO_128(d) JAXBW_FLOATS_TO_96(d), JAXBW_FLOATS_32(d, 96)

// REGISTERS = N / 2 accumulators; A, B, SCALE: the numbers of the operands after them; LAYOUTS, and what follows: the
// transpose bits, of instructions that have them. `accumulate`: 0 overwrites the accumulators, 1 adds to them.
#define JAXBW_DEFINE_WGMMA(A_TYPE, B_TYPE, NAME, N, REGISTERS, A, B, SCALE, LAYOUTS, ...)                              \
  template <>                                                                                                          \
  struct Wgmma<A_TYPE, B_TYPE, N> {                                                                                    \
    static constexpr uint32_t kRegisters = REGISTERS;                                                                  \
    template <Major kA, Major kB>                                                                                      \
    static JAXBW_DEVICE void issue(float (&d)[REGISTERS], uint64_t a, uint64_t b, uint32_t accumulate) {               \
      static_assert(size_bytes(A_TYPE) == 2 || (kA == Major::kK && kB == Major::kK), "others are K-major");            \
      asm volatile("{\n\t.reg .pred p;\n\tsetp.ne.b32 p, %" #SCALE ", 0;\n\twgmma.mma_async.sync.aligned.m64n" #N NAME \
                   " {" JAXBW_NAMES_TO_##REGISTERS "}, %" #A ", %" #B ", p, 1, 1" LAYOUTS ";\n\t}"                     \
                   : JAXBW_FLOATS_TO_##REGISTERS(d)                                                                    \
                   : "l"(a), "l"(b), "r"(accumulate)__VA_OPT__(, ) __VA_ARGS__);                                       \
    }                                                                                                                  \
  };
#define JAXBW_DEFINE_WGMMA_16BIT(TYPE, NAME, N, REGISTERS, A, B, SCALE, TRANSPOSE_A, TRANSPOSE_B) \
  JAXBW_DEFINE_WGMMA(TYPE, TYPE, "k16.f32." NAME "." NAME, N, REGISTERS, A, B, SCALE,             \
                     ", %" #TRANSPOSE_A ", %" #TRANSPOSE_B, "n"(static_cast<uint32_t>(kA)),       \
                     "n"(static_cast<uint32_t>(kB)))
#define JAXBW_DEFINE_WGMMA_TYPES(N, REGISTERS, A, B, SCALE, TRANSPOSE_A, TRANSPOSE_B)                      \
  JAXBW_DEFINE_WGMMA_16BIT(DataType::kBF16, "bf16", N, REGISTERS, A, B, SCALE, TRANSPOSE_A, TRANSPOSE_B)   \
  JAXBW_DEFINE_WGMMA_16BIT(DataType::kF16, "f16", N, REGISTERS, A, B, SCALE, TRANSPOSE_A, TRANSPOSE_B)     \
  JAXBW_DEFINE_WGMMA(DataType::kF32, DataType::kF32, "k8.f32.tf32.tf32", N, REGISTERS, A, B, SCALE, "")    \
  JAXBW_DEFINE_WGMMA(DataType::kE4M3, DataType::kE4M3, "k32.f32.e4m3.e4m3", N, REGISTERS, A, B, SCALE, "") \
  JAXBW_DEFINE_WGMMA(DataType::kE4M3, DataType::kE5M2, "k32.f32.e4m3.e5m2", N, REGISTERS, A, B, SCALE, "") \
  JAXBW_DEFINE_WGMMA(DataType::kE5M2, DataType::kE4M3, "k32.f32.e5m2.e4m3", N, REGISTERS, A, B, SCALE, "") \
  JAXBW_DEFINE_WGMMA(DataType::kE5M2, DataType::kE5M2, "k32.f32.e5m2.e5m2", N, REGISTERS, A, B, SCALE, "")

JAXBW_DEFINE_WGMMA_TYPES(32, 16, 16, 17, 18, 19, 20)
JAXBW_DEFINE_WGMMA_TYPES(64, 32, 32, 33, 34, 35, 36)
JAXBW_DEFINE_WGMMA_TYPES(96, 48, 48, 49, 50, 51, 52)
JAXBW_DEFINE_WGMMA_TYPES(128, 64, 64, 65, 66, 67, 68)
JAXBW_DEFINE_WGMMA_TYPES(160, 80, 80, 81, 82, 83, 84)
JAXBW_DEFINE_WGMMA_TYPES(192, 96, 96, 97, 98, 99, 100)
JAXBW_DEFINE_WGMMA_TYPES(256, 128, 128, 129, 130, 131, 132)

}  // namespace jaxbw::ptx
