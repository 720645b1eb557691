// FP8 encoding fused into the kernel that computes the tensor: an activation, its derivative times a gradient, or
// SwiGLU. The tensor is stored only in fp8, not in bf16: in row layout, in column layout (for backward GEMMs), or both.
// The kernel can also return the column sums, which are the gradient of a bias. No CUDA types here; all pointers are
// device pointers.
//
// Scales are delayed (fp8.h) and belong to a queue. Each tensor of a layer has one scale, identified by owner and role.
// A new scale is `fresh`: its first tensor needs an additional pass to find the largest magnitude.
#pragma once

#include <span>

#include "esp/kernel/activation.h"
#include "esp/kernel/cuda/fp8.h"

namespace esp::kernel::cuda {

enum class Fp8Function : uint8_t {
  identity,             // the output is x
  activation,           // the output is act(x)
  activation_gradient,  // the output is x ∘ act'(pre); x and pre are [rows, cols]
  swiglu,               // the output is silu(g) ∘ u with x [rows, 2·cols] = [g | u]
  // The output is the gradient of swiglu, [rows, cols]. x [rows, cols/2] is swiglu's output gradient, and pre
  // [rows, cols] = [g | u].
  swiglu_gradient,
};
struct Fp8Source {
  const void* x = nullptr;
  const void* pre = nullptr;
  Fp8Function function = Fp8Function::identity;
  Activation activation = Activation::none;
};
// Outputs that are null are not written.
struct Fp8Outputs {
  void* rows = nullptr;         // row layout, [rows, cols]
  void* columns = nullptr;      // column layout, [cols, rows]
  void* column_sums = nullptr;  // cols elements of x's type
  bool accumulate = false;      // add to column_sums instead of overwriting
};
// rows and cols must be multiples of 16, and so must cols/2 for swiglu_gradient. Tensors are bf16; for `identity` also
// f16 and f32.
void encode_fp8(const Fp8Outputs& to, const Fp8Source& from, int64_t rows, int64_t cols, Fp8Scale* scale, Fp8 kind,
                DType dtype, const device::Stream& stream);

struct ScaleHandle {
  Fp8Scale* scale = nullptr;
  bool fresh = false;  // this call created the scale
};
ScaleHandle find_scale(const void* owner, int role, Fp8 kind, const device::Stream& stream);
// The state of a scale as kScaleStateSize numbers, for a checkpoint. All numbers are zero if the scale was never used.
// After a restore, a scale that was used before is not `fresh`.
inline constexpr int kScaleStateSize = 5 + Fp8Scale::kHistory;
struct ScaleKey {
  const void* owner = nullptr;
  int role = 0;
  Fp8 kind = Fp8::e4m3;
};
void save_scales(float* numbers, std::span<const ScaleKey> of, const device::Stream& stream);
void load_scales(const float* numbers, std::span<const ScaleKey> of, const device::Stream& stream);
// Updates all scales of the queue, from the magnitudes seen since the last call. Call it once per step.
void update_scales(const device::Stream& stream);

// Returns true if linear layers on this queue use fp8 GEMMs (GemmSettings::fp8).
bool uses_fp8(const device::Stream& stream);

}  // namespace esp::kernel::cuda
