// What may be launched, and how a launch is described in a message. See gemm.h.
#include <limits>

#include "host/gemm.h"
#include "host/tensor_map.h"

namespace jaxbw {
namespace {

constexpr KernelFamily kFamilies[] = {
    {.name = "sm90",
     .epilogue = kSm90Epilogue,
     .threads = 384,
     .one_wave = true,
     .compute_major = 9,
     .compute_minor = 0,
     .gpus = "compute capability 9.0 (H100, H200, GH200)"},
    {.name = "sm100",
     .epilogue = kSm100Epilogue,
     .threads = 256,
     .one_wave = false,
     .compute_major = 10,
     .compute_minor = -1,
     .gpus = "compute capability 10.x (B200, GB200, B300)"},
};

constexpr uint32_t kMaxClusterSize = 8;      // portable: every GPU with clusters takes it
constexpr uint32_t kMinStages = 2;           // a ring of one stage would let no load run ahead
constexpr uint64_t kMaxExtent = 0x7fffffff;  // TMA coordinates are int32 (PTX 5.5.3), and so is gridDim.x
constexpr uint64_t kMaxStride = 1ull << 40;  // bytes; CUtensorMap's are less
constexpr uint64_t kAlignment = 16;          // bytes, of addresses and strides: CUtensorMap
constexpr uint32_t kSwizzleRows = kSwizzleAtom / kSwizzleSpan;
constexpr uint32_t kMaxUmmaN = 256;  // width of an MMA: PTX 9.7.16.2.1
constexpr uint32_t kUmmaRows = 128;  // rows of an MMA that one CTA holds: one TMEM lane each

bool is_sm90(const KernelFamily& family) { return family.name == "sm90"; }

const char* name(DataType type) { return type == DataType::kF16 ? "f16" : type == DataType::kBF16 ? "bf16" : "f32"; }

char layout_letter(bool row_major) { return row_major ? 'n' : 't'; }

// An sm_90 instance has dtype, layout and tile in its code: another problem on it would read and write other memory
// than the tensor maps and the shared memory provide.
std::string required_kernel(const KernelFamily& family, const GemmProblem& problem, const GemmConfig& config) {
  if (!is_sm90(family)) return concat("jaxbw_sm100_16bit_", config.cta_group, "cta");
  return concat("jaxbw_sm90_", name(problem.input), "_", layout_letter(problem.a_major == Major::kK),
                layout_letter(problem.b_major == Major::kMN), "_", config.block_m, "x", config.block_n, "x", kBlockK);
}

Status check_tile(const KernelFamily& family, const GemmConfig& c) {
  if (is_sm90(family)) {
    if (c.cta_group != 1) return invalid("cta_group is ", c.cta_group, "; sm_90 has no CTA pairs");
    if (c.block_m != family.epilogue.warps * family.epilogue.rows_per_warp) {
      return invalid("block_m is ", c.block_m, "; the sm_90 kernels compute ",
                     family.epilogue.warps * family.epilogue.rows_per_warp, " rows");
    }
    if (c.block_n == 0 || c.block_n > kMaxUmmaN) return invalid("block_n is ", c.block_n, ", not in 1..", kMaxUmmaN);
    return Status();
  }
  if (c.cta_group != 1 && c.cta_group != 2) return invalid("cta_group is ", c.cta_group, "; it is 1 or 2");
  if (c.block_m != kUmmaRows * c.cta_group) {
    return invalid("block_m is ", c.block_m, "; cta_group ", c.cta_group, " computes ", kUmmaRows * c.cta_group,
                   " rows");
  }
  // What the epilogue stores at a time; a legal width of an MMA in either group.
  const uint32_t step = family.epilogue.max_columns;
  if (c.block_n == 0 || c.block_n % step != 0 || c.block_n > kMaxUmmaN) {
    return invalid("block_n is ", c.block_n, "; the sm_100 kernels take multiples of ", step, " up to ", kMaxUmmaN);
  }
  return Status();
}

// The rows of an operand's tile are divided among the CTAs that share it: see tensor_map.cc for the boxes.
Status check_boxes(const char* operand, Major major, uint32_t rows, uint32_t peers) {
  const uint32_t span = kSwizzleSpan / 2;  // elements of 16 bits
  if (major == Major::kMN && rows % span != 0) {
    return invalid(operand, " is MN-major and its tile is ", rows, " wide; it is loaded in columns of ", span);
  }
  const uint32_t divided = major == Major::kK ? rows : kBlockK;
  if (divided % (peers * kSwizzleRows) != 0) {
    return invalid(operand, " is shared by ", peers, " CTAs, which cannot load equal parts of ", divided,
                   " rows in groups of ", kSwizzleRows);
  }
  return Status();
}

std::string shape(const TensorView& view) {
  return concat(name(view.type), "[", view.batch, ",", view.outer, ",", view.contiguous, "]");
}

Status check_view(const TensorView& view) {
  if (view.contiguous > kMaxExtent || view.outer > kMaxExtent || view.batch > kMaxExtent) {
    return invalid(view.name, " ", shape(view), " has a dimension of 2^31 or more; TMA coordinates are int32");
  }
  if ((view.written || !view.has_one_row()) && view.row_bytes() % kAlignment != 0) {
    return invalid(view.name, " ", shape(view), " has rows of ", view.row_bytes(), " bytes; TMA needs a multiple of ",
                   kAlignment);
  }
  if (view.row_bytes() * view.outer >= kMaxStride) {  // below 2^33 * 2^31
    return invalid(view.name, " ", shape(view), " has matrices of 2^40 bytes or more, beyond the strides of TMA");
  }
  if (view.address == 0 || view.address % kAlignment != 0) {
    return invalid(view.name, " is at address ", view.address, "; TMA needs a multiple of ", kAlignment, " bytes");
  }
  return Status();
}

}  // namespace

const KernelFamily* find_family(std::string_view name) {
  for (const KernelFamily& family : kFamilies) {
    if (family.name == name) return &family;
  }
  return nullptr;
}

const KernelFamily* family_of_kernel(std::string_view kernel) {
  for (const KernelFamily& family : kFamilies) {
    if (kernel.starts_with(concat("jaxbw_", family.name, "_"))) return &family;
  }
  return nullptr;
}

uint32_t shared_memory_bytes(const KernelFamily& family, const GemmConfig& config) {
  return storage_layout(config.block_m, config.block_n, config.cta_group, family.epilogue).total_bytes(config.stages);
}

Status check_problem(const GemmProblem& p) {
  if (p.m == 0 || p.n == 0 || p.k == 0 || p.batch == 0) return invalid("a dimension is 0; there is nothing to launch");
  if (p.input != DataType::kF16 && p.input != DataType::kBF16) return invalid("the operands are not f16 or bf16");
  if (p.output > DataType::kF32 || (p.bias && *p.bias > DataType::kF32)) return invalid("unknown dtype");
  if (p.activation > Activation::kSilu) return invalid("unknown activation ", static_cast<uint32_t>(p.activation));
  if (p.a_major > Major::kMN || p.b_major > Major::kMN) return invalid("unknown operand major");
  return Status();
}

Status check_config(const GemmConfig& c) {
  const KernelFamily* family = family_of_kernel(c.kernel);
  if (family == nullptr) return invalid("no kernel family is known for kernel '", c.kernel, "'");
  if (Status status = check_tile(*family, c); !status.ok()) return status;
  if (c.cluster_m == 0 || c.cluster_n == 0 || c.cluster_m > kMaxClusterSize || c.cluster_n > kMaxClusterSize ||
      c.cluster_size() > kMaxClusterSize) {
    return invalid("a cluster of ", c.cluster_m, "x", c.cluster_n, " CTAs; it has 1 to ", kMaxClusterSize);
  }
  if (c.cluster_m % c.cta_group != 0) {
    return invalid("cluster_m ", c.cluster_m, " is not a multiple of cta_group ", c.cta_group);
  }
  const uint32_t max_stages = storage_layout(c.block_m, c.block_n, c.cta_group, family->epilogue).max_stages();
  if (c.stages < kMinStages || c.stages > max_stages) {
    return invalid(c.stages, " stages; a ", c.block_m, "x", c.block_n, " tile takes ", kMinStages, " to ", max_stages);
  }
  if (c.swizzle == 0) return invalid("swizzle is 0; it is 1 or more");
  return Status();
}

Status check_launch(const GemmProblem& problem, const GemmConfig& config, const GemmBuffers& buffers) {
  if (Status status = check_problem(problem); !status.ok()) return status;
  if (Status status = check_config(config); !status.ok()) return status;
  const KernelFamily& family = *family_of_kernel(config.kernel);
  if (const std::string required = required_kernel(family, problem, config); config.kernel != required) {
    return invalid("this launch needs kernel ", required);
  }
  const uint32_t rows = config.block_m / config.cta_group, columns = config.block_n / config.cta_group;
  if (Status status = check_boxes("lhs", problem.a_major, rows, peers_a(config)); !status.ok()) return status;
  if (Status status = check_boxes("rhs", problem.b_major, columns, peers_b(config)); !status.ok()) return status;
  for (const TensorView& view :
       {view_a(problem, config, buffers.a), view_b(problem, config, buffers.b), view_d(problem, family, buffers.d)}) {
    if (Status status = check_view(view); !status.ok()) return status;
  }
  if (problem.bias && (buffers.bias == 0 || buffers.bias % size_bytes(*problem.bias) != 0)) {
    return invalid("bias is at address ", buffers.bias, ", which is not aligned to its elements");
  }
  return Status();
}

std::string describe(const GemmProblem& problem) {
  const GemmConfig no_tiles;
  const std::string lhs = shape(view_a(problem, no_tiles, 0)), rhs = shape(view_b(problem, no_tiles, 0));
  return concat(lhs, problem.a_major == Major::kMN ? "^T" : "", " @ ", rhs, problem.b_major == Major::kK ? "^T" : "",
                problem.bias ? " + bias" : "", " -> ", name(problem.output), "[", problem.batch, ",", problem.m, ",",
                problem.n, "]");
}

std::string describe(const GemmConfig& c) {
  return concat("kernel ", c.kernel, ", block ", c.block_m, "x", c.block_n, ", cluster ", c.cluster_m, "x", c.cluster_n,
                ", cta_group ", c.cta_group, ", stages ", c.stages, ", swizzle ", c.swizzle);
}

}  // namespace jaxbw
