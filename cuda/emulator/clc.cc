#include "clc.h"

#include <cstring>

#include "error.h"

namespace jaxbw::emulator {
namespace {

constexpr uint32_t kFailed = 0xc1c0c1c0, kCanceled = kFailed | 1;
using Words = std::array<uint32_t, 4>;

}  // namespace

std::array<uint8_t, kClcResponseBytes> encode_clc_response(const ClcResponse& response) {
  Words words = {kFailed, kFailed, kFailed, kFailed};
  if (response) words = {kCanceled, (*response)[0], (*response)[1], (*response)[2]};
  std::array<uint8_t, kClcResponseBytes> bytes;
  std::memcpy(bytes.data(), words.data(), bytes.size());
  return bytes;
}

ClcResponse decode_clc_response(std::span<const uint8_t, kClcResponseBytes> bytes) {
  Words words;
  std::memcpy(words.data(), bytes.data(), bytes.size());
  if (words[0] == kCanceled) return CtaId{words[1], words[2], words[3]};
  if (words == Words{kFailed, kFailed, kFailed, kFailed}) return std::nullopt;
  throw Error("clusterlaunchcontrol.query_cancel: these 16 bytes are no response of try_cancel");
}

}  // namespace jaxbw::emulator
