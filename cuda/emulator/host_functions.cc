// Functions that CUDA's run-time provides and kernels call: printf's and assert's.
//
// vprintf takes a format, and a buffer where the arguments lie one behind the other, each at a multiple of its size:
// integers of 4 or 8 bytes, floats as doubles, strings by address ("Formatted Output" in the CUDA Programming Guide).
#include <algorithm>
#include <bit>
#include <cstdio>
#include <cstring>

#include "bits.h"
#include "decoder.h"
#include "machine.h"

namespace jaxbw::emulator {
namespace {

constexpr size_t kMaxText = 1 << 16;    // bytes of one string
constexpr size_t kMaxOutput = 1 << 20;  // of a launch: what CUDA's buffer holds if nobody sets cudaLimitPrintfFifoSize
constexpr uint32_t kMaxArguments = 32;
constexpr size_t kMaxDigits = 4;  // of a width or precision

// What one lane passed, and the memory that it can address.
class Caller {
 public:
  Caller(Step& step, const Frame& frame, uint32_t lane) : step_(step), frame_(frame), lane_(lane) {}

  uint64_t input(size_t i) const {
    uint64_t value = 0;
    std::memcpy(&value, local(frame_.inputs[i]), frame_.inputs[i].bytes);
    return value;
  }
  void output(uint32_t value) { std::memcpy(local(frame_.outputs[0]), &value, sizeof value); }

  uint64_t load(uint64_t address, uint32_t bytes) const {
    uint64_t value = 0;
    std::memcpy(&value, step_.machine.locate(step_, Space::kGeneric, address, bytes, lane_, false).bytes, bytes);
    return value;
  }
  std::string text(uint64_t address) const {
    std::string out;
    while (const auto c = char(load(address++, 1))) {
      if (out.size() == kMaxText) throw Error("printf: a string of more than " + std::to_string(kMaxText) + " bytes");
      out += c;
    }
    return out;
  }

 private:
  uint8_t* local(const Place& place) const {
    return step_.warp.local.data() + size_t{lane_} * step_.machine.program().local_bytes + place.offset;
  }

  Step& step_;
  const Frame& frame_;
  const uint32_t lane_;
};

template <class T>
std::string print(const std::string& conversion, T value) {
  const int size = std::snprintf(nullptr, 0, conversion.c_str(), value);
  if (size < 0) throw Error("printf: " + quoted(conversion) + " is not supported");
  std::string text(size_t(size) + 1, '\0');
  std::snprintf(text.data(), text.size(), conversion.c_str(), value);
  text.pop_back();
  return text;
}

// One call of printf: reads the format conversion by conversion, and hands each to the host's.
class Formatter {
 public:
  Formatter(const Caller& caller, const std::string& format, uint64_t arguments)
      : caller_(caller), format_(format), address_(arguments) {}

  std::string run() {
    while (at_ < format_.size()) {
      const char c = format_[at_++];
      out_ += c != '%' ? std::string(1, c) : conversion();
    }
    return std::move(out_);
  }
  uint32_t count() const { return count_; }

 private:
  char peek() const { return at_ < format_.size() ? format_[at_] : '\0'; }
  // As many of these characters as follow.
  std::string take(const char* characters) {
    std::string taken;
    while (peek() && std::strchr(characters, peek())) taken += format_[at_++];
    return taken;
  }

  uint64_t argument(uint32_t bytes) {
    if (++count_ > kMaxArguments) throw Error("printf: more than " + std::to_string(kMaxArguments) + " arguments");
    address_ = align_up(address_, bytes);
    const uint64_t value = caller_.load(address_, bytes);
    address_ += bytes;
    return value;
  }
  std::string number() {
    const std::string digits = peek() == '*' ? (++at_, std::to_string(int32_t(argument(4)))) : take("0123456789");
    if (digits.size() > kMaxDigits) throw Error("printf: a width or precision of " + digits);
    return digits;
  }

  // %[flags][width][.precision][size]type
  std::string conversion() {
    std::string spec = "%";
    spec += take("#+- 0");
    spec += number();
    if (peek() == '.') {
      ++at_;
      const std::string precision = number();
      if (!precision.starts_with('-')) spec += "." + precision;  // a negative one counts as none
    }
    const std::string size = take("hljzt");
    const char type = peek();
    ++at_;
    const bool wide = size.find_first_of("ljzt") != std::string::npos;
    switch (type) {
      case '%':
        return "%";
      case 'c':
        return print(spec + "c", int(argument(4)));
      case 'd':
      case 'i':
        return wide ? print(spec + "lld", static_cast<long long>(argument(8)))
                    : print(spec + (size + "d"), int(argument(4)));
      case 'o':
      case 'u':
      case 'x':
      case 'X':
        return wide ? print(spec + "ll" + type, static_cast<unsigned long long>(argument(8)))
                    : print(spec + (size + type), unsigned(argument(4)));
      case 'p':
        return print(spec + "p", reinterpret_cast<const void*>(argument(8)));
      case 'e':
      case 'E':
      case 'f':
      case 'F':
      case 'g':
      case 'G':
      case 'a':
      case 'A':
        return print(spec + type, std::bit_cast<double>(argument(8)));
      case 's': {
        const std::string text = caller_.text(argument(8));
        return print(spec + "s", text.c_str());
      }
    }
    throw Error("printf: " + quoted(spec + size + (type ? std::string(1, type) : "")) + " is not supported");
  }

  const Caller& caller_;
  const std::string& format_;
  uint64_t address_;
  size_t at_ = 0;
  uint32_t count_ = 0;
  std::string out_;
};

// An error in a call is one of the call's line.
uint32_t line_of_call(Step& s, const Frame& frame, uint32_t lane) {
  return s.machine.program().code[row32(s, frame.return_to)[lane] - 1].line;
}

void write(std::string& output, const std::string& text) {
  if (output.size() > kMaxOutput) return;
  output += text;
  if (output.size() > kMaxOutput) output += "\n[the emulator keeps no more of what the kernel prints]\n";
}

void print_formatted(Step& s, const Instruction& in) {
  const Frame& frame = s.machine.program().frames[in.target];
  for_lanes(s.active, [&](uint32_t lane) {
    s.line = line_of_call(s, frame, lane);
    Caller caller(s, frame, lane);
    const std::string format = caller.text(caller.input(0));
    Formatter formatter(caller, format, caller.input(1));
    write(s.machine.report().output, formatter.run());
    caller.output(formatter.count());
  });
}

void fail_assertion(Step& s, const Instruction& in) {
  const Frame& frame = s.machine.program().frames[in.target];
  const uint32_t lane = uint32_t(__builtin_ctz(s.active));
  s.line = line_of_call(s, frame, lane);
  const Caller caller(s, frame, lane);
  throw Error("assertion failed: " + caller.text(caller.input(0)) + " (" + caller.text(caller.input(1)) + ":" +
              std::to_string(caller.input(2)) + ", " + caller.text(caller.input(3)) + ")");
}

}  // namespace

const HostFunction* find_host_function(std::string_view name) {
  static const HostFunction kHostFunctions[] = {{"vprintf", {8, 8}, {4}, print_formatted},
                                                {"__assertfail", {8, 8, 4, 8, 8}, {}, fail_assertion}};
  const auto* found = std::find_if(std::begin(kHostFunctions), std::end(kHostFunctions),
                                   [&](const HostFunction& host) { return host.name == name; });
  return found == std::end(kHostFunctions) ? nullptr : found;
}

}  // namespace jaxbw::emulator
