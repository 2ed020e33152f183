// What XLA's FFI hands over, as the host runtime takes it, and errors the other way.
#pragma once

#include <algorithm>
#include <array>
#include <span>

#include "host/gemm_call.h"
#include "xla/ffi/api/ffi.h"

namespace jaxbw {

inline xla::ffi::Error to_error(const Status& status) {
  if (status.ok()) return xla::ffi::Error::Success();
  if (status.code() == StatusCode::kInvalid) return xla::ffi::Error::InvalidArgument(status.message());
  return xla::ffi::Error::Internal(status.message());
}

inline std::optional<DataType> data_type(xla::ffi::DataType type) {
  switch (type) {
    case xla::ffi::DataType::F16:
      return DataType::kF16;
    case xla::ffi::DataType::BF16:
      return DataType::kBF16;
    case xla::ffi::DataType::F32:
      return DataType::kF32;
    case xla::ffi::DataType::F8E4M3FN:
      return DataType::kE4M3;
    case xla::ffi::DataType::F8E5M2:
      return DataType::kE5M2;
    case xla::ffi::DataType::F4E2M1FN:  // XLA packs them, on every platform
      return DataType::kE2M1;
    default:
      return std::nullopt;
  }
}

inline Untyped untyped(xla::ffi::DataType type) {
  switch (type) {
    case xla::ffi::DataType::U8:
    case xla::ffi::DataType::F8E8M0FNU:
      return Untyped::kBytes;
    case xla::ffi::DataType::S32:
      return Untyped::kInt32;
    default:
      return Untyped::kUnknown;
  }
}

inline Array array_of(const xla::ffi::AnyBuffer& buffer) {
  const auto dims = buffer.dimensions();
  return {data_type(buffer.element_type()),
          {dims.begin(), dims.size()},
          reinterpret_cast<CUdeviceptr>(buffer.untyped_data()),
          untyped(buffer.element_type())};
}

// The arrays of a call, on the stack: an execution allocates nothing.
class GivenArrays {
 public:
  GivenArrays(const xla::ffi::RemainingArgs& args, const xla::ffi::RemainingRets& rets)
      : operand_count_(std::min(args.size(), kMost)), result_count_(std::min(rets.size(), kMost)) {
    for (size_t i = 0; i < operand_count_; ++i) operands_[i] = array_of(*args.get<xla::ffi::AnyBuffer>(i));
    for (size_t i = 0; i < result_count_; ++i) results_[i] = array_of(**rets.get<xla::ffi::AnyBuffer>(i));
  }

  std::span<const Array> operands() const { return {operands_.data(), operand_count_}; }
  std::span<const Array> results() const { return {results_.data(), result_count_}; }

 private:
  static constexpr size_t kMost = 12;  // more than any call has, so that one too many is seen
  std::array<Array, kMost> operands_, results_;
  size_t operand_count_, result_count_;
};

}  // namespace jaxbw
