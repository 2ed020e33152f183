#include "host/gemm_launch.h"

#include <algorithm>

namespace jaxbw {
namespace {

constexpr uint64_t kMaxGrid = 0x7fffffff;  // blocks along x: CUDA C++ programming guide, technical specifications

uint64_t ceil_div(uint64_t a, uint64_t b) { return (a + b - 1) / b; }

GemmParams make_params(const GemmProblem& p, const GemmConfig& c, const GemmBuffers& buffers) {
  GemmParams params = {};
  params.epilogue = {.bias = p.bias ? reinterpret_cast<const void*>(buffers.bias) : nullptr,
                     .bias_type = p.bias.value_or(DataType::kF32),
                     .activation = p.activation,
                     .output = p.output};
  params.m = static_cast<uint32_t>(p.m);
  params.n = static_cast<uint32_t>(p.n);
  params.k = static_cast<uint32_t>(p.k);
  params.batch = static_cast<uint32_t>(p.batch);
  params.a_batched = p.a_batched;
  params.b_batched = p.b_batched;
  params.block_m = c.block_m;
  params.block_n = c.block_n;
  params.cluster_m = c.cluster_m;
  params.cluster_n = c.cluster_n;
  params.stages = c.stages;
  params.cluster_tiles_m = static_cast<uint32_t>(ceil_div(p.m, uint64_t{c.cluster_m} * c.block_m / c.cta_group));
  params.cluster_tiles_n = static_cast<uint32_t>(ceil_div(p.n, uint64_t{c.cluster_n} * c.block_n));
  // More than all the rows means all of them; the bound keeps the kernel's products within 32 bits.
  params.swizzle = std::min(c.swizzle, params.cluster_tiles_m);
  params.input = p.input;
  params.a_major = p.a_major;
  params.b_major = p.b_major;
  return params;
}

}  // namespace

uint32_t GemmLaunch::clusters(uint32_t resident) const {
  return static_cast<uint32_t>(family->one_wave ? std::min<uint64_t>(work_items, resident) : work_items);
}

Result<GemmLaunch> make_launch(const GemmProblem& problem, const GemmConfig& config, const GemmBuffers& buffers) {
  if (Status status = check_launch(problem, config, buffers); !status.ok()) return status;
  const KernelFamily& family = *family_of_kernel(config.kernel);
  const GemmParams params = make_params(problem, config, buffers);
  const uint64_t tiles = uint64_t{params.cluster_tiles_m} * params.cluster_tiles_n;
  if (tiles > kMaxGrid / problem.batch / config.cluster_size()) {
    return invalid(params.cluster_tiles_m, "x", params.cluster_tiles_n, " cluster tiles for each of ", problem.batch,
                   " batch indices are more than a grid holds");
  }
  return GemmLaunch{.family = &family,
                    .config = config,
                    .params = params,
                    .a = view_a(problem, config, buffers.a),
                    .b = view_b(problem, config, buffers.b),
                    .d = view_d(problem, family, buffers.d),
                    .work_items = tiles * problem.batch};
}

}  // namespace jaxbw
