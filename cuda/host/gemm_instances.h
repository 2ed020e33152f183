// The kernels that there are (kernel_instances.h) for a matmul: which tiles, which of them serves a launch, and what is
// launched beside it.
#pragma once

#include <set>
#include <string_view>
#include <utility>
#include <vector>

#include "host/gemm.h"
#include "host/gemm_launch.h"

namespace jaxbw {

// By kernel name ("jaxbw_sm90_..."); null where there is none.
const KernelFamily* family_of_kernel(std::string_view kernel);

// What the matmuls of a kernel with such a left operand have in groups.
Grouped grouped_by(std::string_view kernel, Major a_major);

// A type of operands that a gemm kernel takes: all of its have one size.
DataType operand_type(const KernelInstance& instance);

// The kernels that take the operands of a problem, as it is launched.
class InstancesOfProblem {
 public:
  InstancesOfProblem(const KernelFamily& family, const GemmProblem& launched);

  // A kernel of a configuration's tile, the one for all launches if there is one; null where there is none.
  const KernelInstance* find(const GemmConfig& config) const;

  // Why there is none.
  Violation missing(const GemmConfig& config) const;

  // The kernel that serves a launch: of those of its tile, which find() finds, the one that can do least (Scope in
  // gemm/sm90_context.h). Not all tiles have all; null where none of them serves it.
  const KernelInstance* serving(const KernelInstance& of_tile, const GemmProblem& launched, const GemmConfig& config,
                                const EpiloguePlan& epilogue) const;

 private:
  const KernelFamily& family_;
  std::vector<const KernelInstance*> instances_;
};

// Rows and columns of a CTA's tile, of sm_90.
using CtaTile = std::pair<uint32_t, uint32_t>;

// Those that there are kernels for, of any operands.
const std::set<CtaTile>& sm90_tiles(bool pingpong);

// Columns of the tiles with so many rows.
std::vector<uint32_t> columns_of(const std::set<CtaTile>& tiles, uint32_t rows);

// The one that takes the place of a kernel that stores by TMA alone where an address does not allow it; a kernel that
// stores any way itself. Empty where there is none.
std::string_view kernel_without_tma(std::string_view kernel);

// The kernel that copies operands for a kernel of this name.
std::string_view repack_kernel(const KernelFamily& family, std::string_view kernel);

// The kernel that adds up the parts of split tiles.
std::string_view reduce_kernel(const KernelFamily& family);

// The kernel that says what the tiles of a grouped matmul are.
std::string_view group_table_kernel(const KernelFamily& family);

}  // namespace jaxbw
