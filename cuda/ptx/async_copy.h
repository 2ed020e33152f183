// Asynchronous copies by each thread (PTX 9.7.9.25.3), from global to shared memory.
//
// They write through the generic proxy: who reads what they wrote through the async proxy, as wgmma does, has a
// fence_proxy_async between (PTX 9.7.9.25.2).
#pragma once

#include "ptx/thread.h"

namespace jaxbw::ptx {

constexpr uint32_t kAsyncCopyBytes = 16;

// Copies the first `bytes` of kAsyncCopyBytes, none of them where it is 0; the others become zeros.
JAXBW_DEVICE void async_copy(uint32_t destination, const void* source, uint32_t bytes) {
  asm volatile("cp.async.cg.shared.global.L2::128B [%0], [%1], %2, %3;" ::"r"(destination), "l"(source),
               "n"(kAsyncCopyBytes), "r"(bytes)
               : "memory");
}

// Arrives on a barrier of this CTA once all copies of this thread so far are complete: one of the arrivals that the
// barrier was initialised with (PTX 9.7.13.15.15).
JAXBW_DEVICE void async_copy_arrive(uint32_t barrier) {
  asm volatile("cp.async.mbarrier.arrive.noinc.shared::cta.b64 [%0];" ::"r"(barrier) : "memory");
}

// Closes the group of copies that this thread has issued since the last time; there may be none.
JAXBW_DEVICE void async_copy_commit() { asm volatile("cp.async.commit_group;" ::: "memory"); }

// Until all groups but the last kPending are complete.
template <uint32_t kPending>
JAXBW_DEVICE void async_copy_wait() {
  asm volatile("cp.async.wait_group %0;" ::"n"(kPending) : "memory");
}

}  // namespace jaxbw::ptx
