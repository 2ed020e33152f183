// A GEMM launch carried out by the emulator on host memory: the PTX of the kernel that a GPU would run.
#pragma once

#include "emulator/report.h"
#include "host/emulated_launch.h"
#include "host/gemm_launch.h"

namespace jaxbw {

// What computes a matmul, in this order, when `zeroed` has been set to zero.
struct EmulatedCall {
  std::optional<EmulatedLaunch> before;  // a repack, or of a grouped matmul what makes the table
  EmulatedLaunch gemm;
  std::optional<EmulatedLaunch> reduce;
  Words zeroed;
  bool counted;  // parts of tiles are

  // Whether clusters change the same words: then they run on one machine. The emulator's atomics are atomic within one.
  bool meet_at_words() const { return counted || zeroed.count != 0; }
};

// On a machine of so many SMs, that runs `resident` clusters at a time. Runs nothing. Addresses are host pointers.
Result<EmulatedCall> emulated_call(const GemmPlan& plan, const GemmBuffers& buffers, uint32_t resident,
                                   uint32_t sm_count);

// Computes the matmul before it returns. The addresses in `buffers` are host pointers. Unchecked, the clusters are
// divided among the machine's cores: which core computes a tile does not change it. Checked, one machine runs the
// whole grid, and what it finds is the error. Thread-safe; a kernel is parsed at its first use in the process.
Status emulate_gemm(const GemmPlan& plan, const GemmBuffers& buffers);

// The same on one machine of so many SMs, with a report of all that happened in the gemm kernel. `profiling`: null, or
// by which kernel it is done instead.
Result<emulator::Report> trace_gemm(const GemmPlan& plan, const GemmBuffers& buffers, uint32_t sm_count,
                                    const Profiling* profiling);

}  // namespace jaxbw
