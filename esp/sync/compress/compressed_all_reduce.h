// All-reduce of gradients as codes: whole copies, and an exchange per bucket (sync.compress, sync.feedback).
//
// Gradients are summed, so the factor of the mean is 1. Buckets are those of plain all-reduce, cut beforehand; each is
// compressed and leaves as soon as backward has filled it (exchange_lane.h), in f32 whatever the storage.
#pragma once

#include "esp/sync/strategy.h"

namespace esp::sync {

std::unique_ptr<Strategy> make_compressed_all_reduce(const Setup& setup);

}  // namespace esp::sync
