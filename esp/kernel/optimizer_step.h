// Fused optimizer steps over one flat buffer. A step reads and writes every element once. Steps are elementwise, so
// every partition of the buffer gives bit-identical results.
//
// `master` holds the weights that the step updates (fp32, or fp64 for f64). `weights`, if not null, is the 16-bit copy
// that the model reads; the step writes it from `master`. `grad` is in storage type and is multiplied by grad_scale
// (clipping and inverse loss scale combined) before use. `weights` may alias `grad`. Optimizer state has the type of
// master.
//
// For bf16 weights, it is enough to store the lower half of the master copy (split_master.h): set `lower` instead of
// `master`. Results equal the results with a full master copy, except for ties.
#pragma once

#include <cstdint>

#include "esp/base/dtype.h"
#include "esp/device/stream.h"

namespace esp::kernel {

struct StepBuffers {
  void* master = nullptr;   // f32, or f64 if grad_type is f64; null if `lower` is set
  void* weights = nullptr;  // copy in grad_type that the model reads; null if the model reads master
  const void* grad = nullptr;
  void* m = nullptr;  // first moment (Adam) or momentum (SGD)
  void* v = nullptr;  // second moment (Adam)
  int64_t count = 0;
  DType grad_type = DType::f32;
  uint16_t* lower = nullptr;  // lower half of the master copy; bf16 only
};

struct AdamStep {
  double lr = 0, beta1 = 0.9, beta2 = 0.999, eps = 1e-8, weight_decay = 0;
  int64_t t = 1;          // step number, starting at 1
  bool decoupled = true;  // true: AdamW; false: weight decay is added to the gradient (Adam with L2)
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
