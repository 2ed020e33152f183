// Cluster launch control of sm_100 (PTX 9.7.13.17-18): a running cluster takes over the work of a cluster of the
// same grid that has not started yet.
#pragma once

#include "ptx/thread.h"

namespace jaxbw::ptx {

constexpr uint32_t kClcResponseBytes = 16;
constexpr uint32_t kClcRefused = 0xffffffff;

// Asks to cancel a cluster that waits to start. The response is written to `response` and its 16 bytes are counted
// on `barrier`, at these offsets in every CTA of the cluster. Undefined once a refusal has been observed, or when a
// CTA of the cluster has exited.
JAXBW_DEVICE void clc_try_cancel(uint32_t response, uint32_t barrier) {
  asm volatile(
      "clusterlaunchcontrol.try_cancel.async.shared::cta.mbarrier::complete_tx::bytes.multicast::cluster::all.b128 "
      "[%0], [%1];" ::"r"(response),
      "r"(barrier)
      : "memory");
}

// Reads a response: blockIdx.x of the first CTA of the cancelled cluster, or kClcRefused.
JAXBW_DEVICE uint32_t clc_read_response(uint32_t response) {
  uint32_t first_cta;
  asm volatile(
      "{\n\t"
      ".reg .b128 response;\n\t"
      ".reg .pred cancelled;\n\t"
      "ld.shared.b128 response, [%1];\n\t"
      "clusterlaunchcontrol.query_cancel.is_canceled.pred.b128 cancelled, response;\n\t"
      "mov.u32 %0, 0xffffffff;\n\t"
      "@cancelled clusterlaunchcontrol.query_cancel.get_first_ctaid::x.b32.b128 %0, response;\n\t"
      "}"
      : "=r"(first_cta)
      : "r"(response)
      : "memory");
  return first_cta;
}

}  // namespace jaxbw::ptx
