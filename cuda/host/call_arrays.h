// The arrays of a call that quantizes, as they must be.
#pragma once

#include "gemm/quantize.h"
#include "host/gemm_call.h"

namespace jaxbw {

// One operand or result: as it must be, and where its address goes.
struct WantedArray {
  const char* name;
  std::optional<DataType> type;  // none of bytes
  std::span<const int64_t> dims;
  Untyped untyped = Untyped::kBytes;
  CUdeviceptr address = 0;

  template <typename T = void>
  T* pointer() const {
    return reinterpret_cast<T*>(address);
  }
};

inline Status take(const Array& given, WantedArray& wanted) {
  const auto& [name, type, dims, untyped, _] = wanted;
  if (Status status = check_array(name, given, type, dims, untyped); !status.ok()) return status;
  if (given.address == 0 || given.address % kQuantizeVector != 0) {
    return invalid(name, " is at address ", given.address, "; it needs a multiple of ", kQuantizeVector, " bytes");
  }
  wanted.address = given.address;
  return Status();
}

// What the table calls a type that is quantized.
constexpr std::string_view quantized_input(DataType type) {
  return type == DataType::kF32 ? "f32" : type == DataType::kBF16 ? "bf16" : "f16";
}

}  // namespace jaxbw
