// Vocabulary-parallel cross entropy in four steps. Each rank processes the classes of its shard: num_classes classes
// from first_class on. Between the steps the ranks all-reduce three numbers per row instead of the logits: `tops` by
// maximum, `sums` and `picked` by sum.
//
// Statistics are in the accumulation type. Targets are global class numbers. Rows with a target < 0 are ignored: they
// have loss 0 and a zero gradient.
#pragma once

#include <cstdint>

#include "esp/base/dtype.h"
#include "esp/device/stream.h"

namespace esp::kernel {

struct VocabShard {
  int64_t first_class = 0, num_classes = 0, row_stride = 0;
};

// Computes over this rank's classes: tops[r] = the largest logit, sums[r] = Σ exp(logit − tops[r]), picked[r] = the
// logit of the target, or 0 if the target is in another rank's shard.
void vocab_cross_entropy_forward(void* tops, void* sums, void* picked, const void* logits, const int32_t* targets,
                                 int64_t rows, const VocabShard& part, DType dtype, const device::Stream& stream);
// Rescales sums[r] from this rank's maximum to the global maximum: sums[r] ← sums[r]·exp(own_tops[r] − tops[r]).
void vocab_cross_entropy_rescale(void* sums, const void* own_tops, const void* tops, int64_t rows, DType dtype,
                                 const device::Stream& stream);
// losses[r] = tops[r] + log(sums[r]) − picked[r], with all-reduced inputs.
void vocab_cross_entropy_losses(void* losses, const void* tops, const void* sums, const void* picked,
                                const int32_t* targets, int64_t rows, DType dtype, const device::Stream& stream);
// In place: logits[r] ← (exp(logits[r] − tops[r])/sums[r] − onehot(targets[r]))·scale.
void vocab_cross_entropy_backward(void* logits, const void* tops, const void* sums, const int32_t* targets,
                                  double scale, int64_t rows, const VocabShard& part, DType dtype,
                                  const device::Stream& stream);

namespace ref {
void vocab_cross_entropy_forward(void* tops, void* sums, void* picked, const void* logits, const int32_t* targets,
                                 int64_t rows, const VocabShard& part, DType dtype);
void vocab_cross_entropy_backward(void* logits, const void* tops, const void* sums, const int32_t* targets,
                                  double scale, int64_t rows, const VocabShard& part, DType dtype);
}  // namespace ref

namespace cuda {
decltype(kernel::vocab_cross_entropy_rescale) vocab_cross_entropy_rescale;
decltype(kernel::vocab_cross_entropy_losses) vocab_cross_entropy_losses;
decltype(kernel::vocab_cross_entropy_forward) vocab_cross_entropy_forward;
decltype(kernel::vocab_cross_entropy_backward) vocab_cross_entropy_backward;
}  // namespace cuda

}  // namespace esp::kernel
