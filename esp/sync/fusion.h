// Tensor fusion (Sergeev and Del Balso 2018, Horovod): gradient buckets without a fixed composition. Every few
// milliseconds a thread determines which gradients are complete on all ranks and packs those into one buffer of bounded
// size.
//
// Gradients are copied into the buffer and back. An all-reduce (minimum) of completion flags yields the set of complete
// gradients, so no coordinator is needed. Every rank fuses the same tensors in the same order, even if its gradients
// complete in another order.
#pragma once

#include "esp/sync/strategy.h"

namespace esp::sync {

std::unique_ptr<Strategy> make_fusion(const Setup& setup);

}  // namespace esp::sync
