// Compressed all-reduce: every rank holds the whole model and exchanges compressed gradients, one exchange per gradient
// bucket (sync.compress, sync.feedback).
//
// Gradients are summed, not averaged: the loss is already scaled by the global token count. Gradient buckets are those
// of the plain all-reduce with fixed buckets. Each one is compressed and sent as soon as backward has filled it
// (exchange_thread.h), in f32 for any storage type.
#pragma once

#include "esp/sync/strategy.h"

namespace esp::sync {

std::unique_ptr<Strategy> make_compressed_all_reduce(const Setup& setup);

}  // namespace esp::sync
