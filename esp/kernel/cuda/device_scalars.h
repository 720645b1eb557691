// Optimizer steps for CUDA graphs. The kernels read per-step scalars from device memory, so a captured CUDA graph stays
// valid when the scalars change. Sums stay on the device. All pointers are device pointers. No function waits for the
// GPU, except multi_tensor_adam_step when its list of buffers changes.
#pragma once

#include <cstdint>
#include <span>

#include "esp/base/dtype.h"
#include "esp/device/stream.h"
#include "esp/kernel/optimizer_step.h"

namespace esp::kernel::cuda {

// Computes *total = Σ x² in fp64; if `accumulate` is set, adds the sum to *total. One call per gradient buffer gives
// the square of the global gradient norm.
void sum_of_squares_to(double* total, bool accumulate, const void* x, int64_t count, DType dtype,
                       const device::Stream& stream);

// Per-step scalars in device memory. lr and t replace AdamStep's lr and t. grad_scale is multiplied by AdamStep's
// grad_scale.
struct StepScalars {
  double lr = 0, grad_scale = 1;
  int64_t t = 1;
};
void adam_step(const StepBuffers& buffers, const AdamStep& step, const StepScalars* scalars,
               const device::Stream& stream);

// Multi-tensor Adam: performs adam_step for many buffers in one kernel. steps[i] belongs to buffers[i]; the steps may
// differ only in weight decay. The list of buffers stays on the device until it changes.
void multi_tensor_adam_step(std::span<const StepBuffers> buffers, std::span<const AdamStep> steps,
                            const device::Stream& stream);

// Gradient clipping: scalars->grad_scale = inverse_loss_scale · min(1, max_norm/√*squares). max_norm 0 means no
// clipping. If the norm is not finite, grad_scale becomes NaN. The NaN reaches every weight and is detected at the end
// of the step.
void set_grad_scale(StepScalars* scalars, const double* squares, double max_norm, double inverse_loss_scale,
                    const device::Stream& stream);

// Adam without a master copy. Updates `weights` (16-bit, of grad_type) in place and rounds them stochastically: element
// i uses word i of the Philox stream (seed, purpose). Moments are in fp32.
void adam_step_stochastic(const StepBuffers& buffers, const AdamStep& step, uint64_t seed, uint64_t purpose,
                          const device::Stream& stream);

}  // namespace esp::kernel::cuda
