// CUDA graph support: kernels that read per-step scalars from device memory, so that a captured graph of the step stays
// valid, and sums that stay on the device. All pointers are device pointers; nothing waits.
#pragma once

#include <cstdint>
#include <span>

#include "esp/base/dtype.h"
#include "esp/device/stream.h"
#include "esp/kernel/optimizer_step.h"

namespace esp::kernel::cuda {

// *total = or += Σ x², in fp64. A call per buffer makes the square of their common norm.
void sum_of_squares_to(double* total, bool accumulate, const void* x, int64_t count, DType dtype,
                       const device::Stream& stream);

// lr and t replace those of the AdamStep, grad_scale multiplies its.
struct StepScalars {
  double lr = 0, grad_scale = 1;
  int64_t t = 1;
};
void adam_step(const StepBuffers& buffers, const AdamStep& step, const StepScalars* scalars,
               const device::Stream& stream);

// adam_step of many buffers in one kernel; steps[i] is that of buffers[i], and all but their weight decay are alike.
// The list of buffers is kept on the device until another comes.
void adam_steps(std::span<const StepBuffers> buffers, std::span<const AdamStep> steps, const device::Stream& stream);

// scalars->grad_scale = inverse_loss_scale · min(1, max_norm/√*squares); max_norm 0: no clipping. A non-finite norm
// gives NaN, which reaches every weight and is detected at the end of the step.
void set_grad_scale(StepScalars* scalars, const double* squares, double max_norm, double inverse_loss_scale,
                    const device::Stream& stream);

// Adam without a master copy: `weights` (16-bit, of grad_type) are updated in place with stochastic rounding by word i
// of the Philox stream (seed, purpose). Moments in fp32.
void adam_step_stochastic(const StepBuffers& buffers, const AdamStep& step, uint64_t seed, uint64_t purpose,
                          const device::Stream& stream);

}  // namespace esp::kernel::cuda
