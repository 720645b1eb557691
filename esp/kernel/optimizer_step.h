// Fused optimizer steps over one flat buffer: each reads and writes every element once. Elementwise, so any partition
// of the buffer gives the same bits.
//
// `master` holds the weights being updated (fp32, fp64 for f64); `weights`, if not null, is the 16-bit storage copy
// written from it. `grad` is in storage type and is multiplied by grad_scale (clipping and inverse loss scale combined)
// before use; `weights` may alias it. State is in master's type.
//
// The master copy of bf16 weights may be stored as its lower half (halves.h): `lower` instead of `master`. Results
// equal those of a full copy except for ties.
#pragma once

#include <cstdint>

#include "esp/base/dtype.h"
#include "esp/device/stream.h"

namespace esp::kernel {

struct StepBuffers {
  void* master = nullptr;   // f32, or f64 when grad is f64; null with `lower`
  void* weights = nullptr;  // storage copy in grad_type, or null if the model reads master
  const void* grad = nullptr;
  void* m = nullptr;  // first moment, or momentum
  void* v = nullptr;  // second moment (Adam)
  int64_t count = 0;
  DType grad_type = DType::f32;
  uint16_t* lower = nullptr;  // bf16 alone
};

struct AdamStep {
  double lr = 0, beta1 = 0.9, beta2 = 0.999, eps = 1e-8, weight_decay = 0;
  int64_t t = 1;          // from 1
  bool decoupled = true;  // AdamW; false: weight decay is added to the gradient (Adam with L2)
  double grad_scale = 1;
};
void adam_step(const StepBuffers& buffers, const AdamStep& step, const device::Stream& stream);

struct SgdStep {
  double lr = 0, momentum = 0, weight_decay = 0;
  bool nesterov = false;
  double grad_scale = 1;
};
void sgd_step(const StepBuffers& buffers, const SgdStep& step, const device::Stream& stream);

namespace ref {
void adam_step(const StepBuffers& buffers, const AdamStep& step);
void sgd_step(const StepBuffers& buffers, const SgdStep& step);
}  // namespace ref

namespace cuda {
decltype(kernel::adam_step) adam_step;
decltype(kernel::sgd_step) sgd_step;
}  // namespace cuda

}  // namespace esp::kernel
