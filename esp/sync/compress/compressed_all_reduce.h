// All-reduce of gradients as codes: whole copies, a compressor and a feedback per bucket (sync.compress,
// sync.feedback).
//
// Gradients are summed, so the factor of the mean is 1. Buckets are those of plain all-reduce, cut beforehand; each is
// exchanged in `finish`, in f32 whatever the storage. "powersgd:R" is a matrix compressor with a feedback of its own:
// it takes the matrices of a bucket by their shapes.
#pragma once

#include "esp/sync/strategy.h"

namespace esp::sync {

// UsageError for options that do not go together, and for a pair that diverges by theory.
void check_compression(const Options& options);
std::unique_ptr<Strategy> make_compressed_all_reduce(const Setup& setup);

}  // namespace esp::sync
