// Errors as values. The host runtime throws nothing: the same code serves the XLA FFI handler, across
// whose C boundary no exception may pass, and the Python module, which turns a Status into an exception.
#pragma once

#include <sstream>
#include <string>
#include <utility>
#include <variant>

namespace jaxbw {

enum class StatusCode {
  kOk,
  kInvalid,  // the request breaks a rule: shapes, dtypes, configuration
  kDriver,   // no usable driver or GPU, or a driver call failed
  kCorrupt,  // a launch wrote where it must not, did not repeat itself, or was found at fault by the emulator
};

class [[nodiscard]] Status {
 public:
  Status() = default;
  Status(StatusCode code, std::string message, int cuda_error = 0)
      : code_(code), cuda_error_(cuda_error), message_(std::move(message)) {}

  bool ok() const { return code_ == StatusCode::kOk; }
  StatusCode code() const { return code_; }
  int cuda_error() const { return cuda_error_; }  // the CUresult of a failed driver call, else 0
  const std::string& message() const { return message_; }

 private:
  StatusCode code_ = StatusCode::kOk;
  int cuda_error_ = 0;
  std::string message_;
};

// A value, or the Status that says why there is none.
template <typename T>
class [[nodiscard]] Result {
 public:
  Result(const T& value) : state_(value) {}             // NOLINT: a value is a result
  Result(T&& value) : state_(std::move(value)) {}       // NOLINT
  Result(Status status) : state_(std::move(status)) {}  // NOLINT: so is an error

  bool ok() const { return std::holds_alternative<T>(state_); }
  Status status() const { return ok() ? Status() : std::get<Status>(state_); }
  const T& operator*() const { return std::get<T>(state_); }
  const T* operator->() const { return &std::get<T>(state_); }
  T take() && { return std::get<T>(std::move(state_)); }  // for what is too large to copy

 private:
  std::variant<Status, T> state_;
};

template <typename... Parts>
std::string concat(const Parts&... parts) {
  std::ostringstream text;
  (text << ... << parts);
  return text.str();
}

template <typename... Parts>
Status invalid(const Parts&... parts) {
  return Status(StatusCode::kInvalid, concat(parts...));
}

// The same error with a line in front that says what was being done.
inline Status with_context(const std::string& context, const Status& status) {
  if (status.ok()) return status;
  return Status(status.code(), concat(context, ": ", status.message()), status.cuda_error());
}

}  // namespace jaxbw
