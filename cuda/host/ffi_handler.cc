#include "host/ffi_handler.h"

#include <cuda.h>

#include <array>
#include <memory>

#include "host/call_site.h"
#include "host/emulated_gemm.h"
#include "xla/ffi/api/ffi.h"

#define JAXBW_MEMBER(name, ...) , xla::ffi::StructMember<int32_t>(#name)
XLA_FFI_REGISTER_STRUCT_ATTR_DECODING(jaxbw::GemmAttributes, xla::ffi::StructMember<std::string_view>("kernel"),
                                      xla::ffi::StructMember<float>("alpha"),
                                      xla::ffi::StructMember<float>("beta") JAXBW_PROBLEM_ATTRIBUTES(JAXBW_MEMBER)
                                          JAXBW_CONFIG_FIELDS(JAXBW_MEMBER));
#undef JAXBW_MEMBER

namespace jaxbw {
namespace {

namespace ffi = xla::ffi;

ffi::Error to_error(const Status& status) {
  if (status.ok()) return ffi::Error::Success();
  if (status.code() == StatusCode::kInvalid) return ffi::Error::InvalidArgument(status.message());
  return ffi::Error::Internal(status.message());
}

std::optional<DataType> data_type(ffi::DataType type) {
  switch (type) {
    case ffi::DataType::F16:
      return DataType::kF16;
    case ffi::DataType::BF16:
      return DataType::kBF16;
    case ffi::DataType::F32:
      return DataType::kF32;
    case ffi::DataType::F8E4M3FN:
      return DataType::kE4M3;
    case ffi::DataType::F8E5M2:
      return DataType::kE5M2;
    default:
      return std::nullopt;
  }
}

Array array_of(const ffi::AnyBuffer& buffer) {
  const auto dims = buffer.dimensions();
  return {data_type(buffer.element_type()),
          {dims.begin(), dims.size()},
          reinterpret_cast<CUdeviceptr>(buffer.untyped_data())};
}

// The arrays of a call, on the stack: an execution allocates nothing.
class GivenArrays {
 public:
  GivenArrays(const ffi::RemainingArgs& args, const ffi::RemainingRets& rets)
      : operand_count_(std::min(args.size(), kMost)), result_count_(std::min(rets.size(), kMost)) {
    for (size_t i = 0; i < operand_count_; ++i) operands_[i] = array_of(*args.get<ffi::AnyBuffer>(i));
    for (size_t i = 0; i < result_count_; ++i) results_[i] = array_of(**rets.get<ffi::AnyBuffer>(i));
  }

  std::span<const Array> operands() const { return {operands_.data(), operand_count_}; }
  std::span<const Array> results() const { return {results_.data(), result_count_}; }

 private:
  static constexpr size_t kMost = 10;  // more than any call has, so that one too many is seen
  std::array<Array, kMost> operands_, results_;
  size_t operand_count_, result_count_;
};

struct CallState {
  explicit CallState(const GemmAttributes& attributes) : site(attributes) {}

  static ffi::TypeId id;  // as the FFI wants it
  CallSite site;
};

ffi::TypeId CallState::id = XLA_FFI_UNKNOWN_TYPE_ID;

// noexcept: nothing may be thrown into XLA, which is compiled without exceptions.

ffi::ErrorOr<std::unique_ptr<CallState>> instantiate(GemmAttributes attributes) noexcept {
  if (Status status = check_call(config_of(attributes)); !status.ok()) return ffi::Unexpected(to_error(status));
  return std::make_unique<CallState>(attributes);
}

ffi::Error initialize(int32_t device, CallState* state, ffi::Dictionary) noexcept {
  return to_error(state->site.prepare(device));
}

ffi::Error execute(CUstream stream, int32_t device, CallState* state, ffi::RemainingArgs args, ffi::RemainingRets rets,
                   ffi::Dictionary) noexcept {
  const GivenArrays given(args, rets);
  return to_error(state->site.launch(given.operands(), given.results(), device, stream));
}

ffi::Error emulate(ffi::RemainingArgs args, ffi::RemainingRets rets, GemmAttributes attributes) noexcept {
  const GivenArrays given(args, rets);
  const Result<GemmCall> call = read_call(attributes, given.operands(), given.results());
  if (!call.ok()) return to_error(with_context(kGemmTarget, call.status()));
  return to_error(emulate_gemm(call->plan, call->buffers));
}

}  // namespace

XLA_FFI_Error* gemm_instantiate(XLA_FFI_CallFrame* frame) {
  static const auto handler = ffi::Ffi::BindInstantiate().Attrs<GemmAttributes>().To(instantiate);
  return handler->Call(frame);
}

XLA_FFI_Error* gemm_initialize(XLA_FFI_CallFrame* frame) {
  static const auto handler =
      ffi::Ffi::BindInitialize().Ctx<ffi::DeviceOrdinal>().Ctx<ffi::State<CallState>>().Attrs().To(initialize);
  return handler->Call(frame);
}

XLA_FFI_Error* gemm_execute(XLA_FFI_CallFrame* frame) {
  static const auto handler = ffi::Ffi::BindExecute()
                                  .Ctx<ffi::PlatformStream<CUstream>>()
                                  .Ctx<ffi::DeviceOrdinal>()
                                  .Ctx<ffi::State<CallState>>()
                                  .RemainingArgs()
                                  .RemainingRets()
                                  .Attrs()  // read by instantiate
                                  .To(execute, {ffi::Traits::kCmdBufferCompatible});
  return handler->Call(frame);
}

XLA_FFI_TypeId* call_site_id() { return &CallState::id; }

const XLA_FFI_TypeInfo* call_site_info() {
  static const XLA_FFI_TypeInfo info = ffi::MakeTypeInfo<CallState>();
  return &info;
}

XLA_FFI_Error* gemm_emulate(XLA_FFI_CallFrame* frame) {
  static const auto handler =
      ffi::Ffi::BindExecute().RemainingArgs().RemainingRets().Attrs<GemmAttributes>().To(emulate);
  return handler->Call(frame);
}

}  // namespace jaxbw
