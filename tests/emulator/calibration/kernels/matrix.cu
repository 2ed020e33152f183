// ldmatrix and stmatrix (PTX 9.7.14.5.15-16): one warp, whose lanes give the addresses of the rows.
#include "common.cuh"

namespace jaxbw::calibration {

#define PARTS_1 "{%0}"
#define PARTS_2 "{%0, %1}"
#define PARTS_4 "{%0, %1, %2, %3}"

#define DEFINE_MATRIX(NAME, COUNT, TRANS)                                                                           \
  extern "C" __global__ void ldmatrix_##NAME(const uint32_t* memory, uint32_t bytes, const uint32_t* rows,          \
                                             uint32_t* out) {                                                       \
    read_into_shared(memory, bytes);                                                                                \
    __syncthreads();                                                                                                \
    uint32_t r0 = 0, r1 = 0, r2 = 0, r3 = 0;                                                                        \
    asm volatile("ldmatrix.sync.aligned.m8n8." #COUNT TRANS ".shared.b16 " PARTS_##NAME ", [%4];"                   \
                 : "+r"(r0), "+r"(r1), "+r"(r2), "+r"(r3)                                                           \
                 : "r"(shared_address(shared_words) + rows[threadIdx.x])                                            \
                 : "memory");                                                                                       \
    const uint32_t i = 4 * threadIdx.x;                                                                             \
    out[i] = r0, out[i + 1] = r1, out[i + 2] = r2, out[i + 3] = r3;                                                 \
  }                                                                                                                 \
  extern "C" __global__ void stmatrix_##NAME(const uint32_t* values, uint32_t bytes, const uint32_t* rows,          \
                                             uint32_t* out) {                                                       \
    fill_shared(bytes);                                                                                             \
    __syncthreads();                                                                                                \
    const uint32_t i = 4 * threadIdx.x;                                                                             \
    asm volatile("stmatrix.sync.aligned.m8n8." #COUNT TRANS ".shared.b16 [%4], " PARTS_##NAME ";" ::"r"(values[i]), \
                 "r"(values[i + 1]), "r"(values[i + 2]), "r"(values[i + 3]),                                        \
                 "r"(shared_address(shared_words) + rows[threadIdx.x])                                              \
                 : "memory");                                                                                       \
    __syncthreads();                                                                                                \
    write_from_shared(out, bytes);                                                                                  \
  }
#define PARTS_x1 PARTS_1
#define PARTS_x2 PARTS_2
#define PARTS_x4 PARTS_4
#define PARTS_x1_trans PARTS_1
#define PARTS_x2_trans PARTS_2
#define PARTS_x4_trans PARTS_4
DEFINE_MATRIX(x1, x1, "")
DEFINE_MATRIX(x2, x2, "")
DEFINE_MATRIX(x4, x4, "")
DEFINE_MATRIX(x1_trans, x1, ".trans")
DEFINE_MATRIX(x2_trans, x2, ".trans")
DEFINE_MATRIX(x4_trans, x4, ".trans")

}  // namespace jaxbw::calibration
