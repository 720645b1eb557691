// Tensor fusion (Sergeev and Del Balso 2018, Horovod): no buckets decided beforehand. A thread wakes every few
// milliseconds, the ranks agree which gradients all of them have, and those travel together in a buffer of bounded
// size.
//
// Gradients are copied into the buffer and back. The agreement is a minimum over flags, so it needs no coordinator and
// every rank fuses the same tensors in the same order, whatever became ready first.
#pragma once

#include "esp/sync/strategy.h"

namespace esp::sync {

std::unique_ptr<Strategy> make_fusion(const Setup& setup);

}  // namespace esp::sync
