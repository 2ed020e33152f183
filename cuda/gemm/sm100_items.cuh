// How the roles of a grouped matmul of the Blackwell kernel come to their tiles, and what these are deep.
#pragma once

#include "gemm/grouped_items.cuh"
#include "gemm/sm100.cuh"

namespace jaxbw::sm100 {

// log2 of the elements of a block of K.
constexpr uint32_t grouped_block_k_log2(Kind kind) { return kSwizzleSpanLog2 - element_log2(kind); }

// Calls function(item) for each work item of this CTA, or of its pair.
template <uint32_t kCtaGroup = 1, typename Params, typename Function>
JAXBW_DEVICE void for_each_item(const Context& context, const GroupedItems<Params>& items, const Function& function) {
  RequestedItem next = items.request(blockIdx.x / kCtaGroup);
#pragma unroll 1
  for (uint32_t number = blockIdx.x / kCtaGroup; number < items.count(); number += gridDim.x / kCtaGroup) {
    context.profile.enter(Activity::kNextItem, number);
    const GroupedItem item = items.item(next);
    next = items.request(number + gridDim.x / kCtaGroup);
    function(item);
  }
}

}  // namespace jaxbw::sm100
