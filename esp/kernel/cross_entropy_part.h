// Vocabulary-parallel cross entropy in four steps: each rank processes its own classes, [first_class, first_class +
// num_classes). Between the steps the ranks reduce the maximum of the tops and the sums of the others: 3 numbers per
// row instead of its logits.
//
// Statistics are in the accumulation type. Targets are global class numbers; rows with a target < 0 are ignored: loss 0
// and a zero gradient.
#pragma once

#include <cstdint>

#include "esp/base/dtype.h"
#include "esp/device/stream.h"

namespace esp::kernel {

struct ClassPart {
  int64_t first_class = 0, num_classes = 0, row_stride = 0;
};

// tops[r] = the largest logit, sums[r] = Σ exp(logit − tops[r]), picked[r] = the target's logit, 0 if it is on another
// rank.
void cross_entropy_part_forward(void* tops, void* sums, void* picked, const void* logits, const int32_t* targets,
                                int64_t rows, const ClassPart& part, DType dtype, const device::Stream& stream);
// Rescales sums[r] from the local to the global top: sums[r]·exp(own_tops[r] − tops[r]).
void cross_entropy_part_rescale(void* sums, const void* own_tops, const void* tops, int64_t rows, DType dtype,
                                const device::Stream& stream);
// losses[r] = tops[r] + log(sums[r]) − picked[r], all global.
void cross_entropy_part_losses(void* losses, const void* tops, const void* sums, const void* picked,
                               const int32_t* targets, int64_t rows, DType dtype, const device::Stream& stream);
// logits[r] ← (exp(logits[r] − tops[r])/sums[r] − onehot(targets[r]))·scale, in place.
void cross_entropy_part_backward(void* logits, const void* tops, const void* sums, const int32_t* targets, double scale,
                                 int64_t rows, const ClassPart& part, DType dtype, const device::Stream& stream);

namespace ref {
void cross_entropy_part_forward(void* tops, void* sums, void* picked, const void* logits, const int32_t* targets,
                                int64_t rows, const ClassPart& part, DType dtype);
void cross_entropy_part_backward(void* logits, const void* tops, const void* sums, const int32_t* targets, double scale,
                                 int64_t rows, const ClassPart& part, DType dtype);
}  // namespace ref

namespace cuda {
decltype(kernel::cross_entropy_part_rescale) cross_entropy_part_rescale;
decltype(kernel::cross_entropy_part_losses) cross_entropy_part_losses;
decltype(kernel::cross_entropy_part_forward) cross_entropy_part_forward;
decltype(kernel::cross_entropy_part_backward) cross_entropy_part_backward;
}  // namespace cuda

}  // namespace esp::kernel
