// Tensor fusion (Sergeev and Del Balso 2018, Horovod): no fixed buckets. A thread wakes every cycle of a few
// milliseconds; the ranks determine which gradients are complete on all of them, and these are fused into one buffer of
// bounded size.
//
// Gradients are copied into the buffer and back. The set of complete gradients is a minimum all-reduce over flags, so
// it needs no coordinator, and every rank fuses the same tensors in the same order, independent of the order in which
// they complete.
#pragma once

#include "esp/sync/strategy.h"

namespace esp::sync {

std::unique_ptr<Strategy> make_fusion(const Setup& setup);

}  // namespace esp::sync
