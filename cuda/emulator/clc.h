// The response of clusterlaunchcontrol.try_cancel (PTX 9.7.13.17, 9.7.13.18): 16 bytes that PTX calls opaque.
// Only query_cancel may look inside, so the format is the emulator's own; its marker words make a query of
// anything else (a response that has not arrived yet, a slot that was overwritten) an error.
//
//   word 0: marker | 1 if a cluster was canceled      words 1-3: ctaid of its first CTA, or markers
#pragma once

#include <array>
#include <cstdint>
#include <optional>
#include <span>

namespace jaxbw::emulator {

inline constexpr uint32_t kClcResponseBytes = 16;

using CtaId = std::array<uint32_t, 3>;

// What query_cancel reads: the first CTA of the canceled cluster, or nothing where the request failed.
using ClcResponse = std::optional<CtaId>;

std::array<uint8_t, kClcResponseBytes> encode_clc_response(const ClcResponse& response);

// Throws Error on bytes that encode_clc_response cannot have made.
ClcResponse decode_clc_response(std::span<const uint8_t, kClcResponseBytes> bytes);

}  // namespace jaxbw::emulator
