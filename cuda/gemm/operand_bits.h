// The type and layout of operands of 16 bits, of a kernel that is compiled to PTX once for all of them. There a name
// stands for what its instances differ in; the build writes a number in its place (Kernel.ptx in kernel_table.py), and
// ptxas drops the instructions of the other instances.
#pragma once

#include "params.h"
#include "ptx/thread.h"

namespace jaxbw {

class OperandBits {
 public:
  JAXBW_DEVICE OperandBits() { asm("mov.u32 %0, 0x4a584257;" : "=r"(bits_)); }

  JAXBW_DEVICE Major a_major() const { return (bits_ & 1) != 0 ? Major::kMN : Major::kK; }
  JAXBW_DEVICE Major b_major() const { return (bits_ & 2) != 0 ? Major::kMN : Major::kK; }
  JAXBW_DEVICE DataType type() const { return (bits_ & 4) == 0 ? DataType::kBF16 : DataType::kF16; }

 private:
  uint32_t bits_;
};

}  // namespace jaxbw
