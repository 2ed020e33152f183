// Instances that differ only in their operands are compiled to PTX once for all. There a word stands for the number
// that says which operands they are; the build writes the number (Kernel.placeholder in kernel_table.py), and ptxas
// drops the instructions of the other instances.
#pragma once

#include "params.h"
#include "ptx/thread.h"

namespace jaxbw {

JAXBW_DEVICE uint32_t number_of_instance() {
  uint32_t number;
  asm("mov.u32 %0, 0x4a584257;" : "=r"(number));
  return number;
}

// sm_90: the type and layout of operands.
class OperandBits {
 public:
  JAXBW_DEVICE Major a_major() const { return (bits_ & 1) != 0 ? Major::kMN : Major::kK; }
  JAXBW_DEVICE Major b_major() const { return (bits_ & 2) != 0 ? Major::kMN : Major::kK; }
  // Whether the launch says which layout.
  JAXBW_DEVICE bool any_layout() const { return (bits_ & 4) != 0; }
  // Neither of the three: bf16.
  JAXBW_DEVICE bool is_f16() const { return bits_ >> 3 == 1; }
  JAXBW_DEVICE bool is_8bit() const { return bits_ >> 3 == 2; }
  JAXBW_DEVICE bool is_tf32() const { return bits_ >> 3 == 3; }

 private:
  uint32_t bits_ = number_of_instance();
};

// sm_100: log2 of the bytes of an element, which says of which kind operands are.
JAXBW_DEVICE uint32_t element_log2_of_instance() { return number_of_instance(); }

}  // namespace jaxbw
