// FP8 encoding fused into the pass that produces the tensor: an activation, its derivative times a gradient, a gate.
// The bf16 tensor is never stored, only its fp8 form: by rows, by columns (for backward GEMMs), or both. Also returns
// its column sums, the gradient of a bias. No CUDA types here; all pointers are device pointers.
//
// Scales are delayed (fp8.h) and belong to a queue: one per tensor of a layer, identified by owner and role. A new
// scale is fresh: its first tensor takes an extra pass to find the largest magnitude.
#pragma once

#include <span>

#include "esp/kernel/activation.h"
#include "esp/kernel/cuda/fp8.h"

namespace esp::kernel::cuda {

enum class Fp8Of : uint8_t {
  itself,       // x
  activation,   // act(x)
  slope,        // x ∘ act'(pre), all [rows, cols]
  gated,        // silu(g) ∘ u with x [rows, 2·cols] = [g | u]
  gated_slope,  // its gradient [rows, cols]: x [rows, cols/2] that of the gate's output, pre [rows, cols] = [g | u]
};
struct Fp8Source {
  const void* x = nullptr;
  const void* pre = nullptr;
  Fp8Of what = Fp8Of::itself;
  Activation activation = Activation::none;
};
// Null outputs are skipped.
struct Fp8Codes {
  void* rows = nullptr;         // [rows, cols]
  void* columns = nullptr;      // [cols, rows]
  void* column_sums = nullptr;  // cols of x's type
  bool accumulate = false;      // column_sums += …
};
// rows and cols (cols/2 of a gated slope) are multiples of 16. bf16; x itself may be f16 or f32 too.
void make_codes(const Fp8Codes& to, const Fp8Source& from, int64_t rows, int64_t cols, Fp8Scale* scale, Fp8 kind,
                DType dtype, const device::Stream& stream);

struct KeptScale {
  Fp8Scale* scale = nullptr;
  bool fresh = false;  // no call before this one asked for it
};
KeptScale kept_scale(const void* owner, int role, Fp8 kind, const device::Stream& stream);
// The state of a scale, as numbers for a checkpoint; all zero if never used. Restoring a used scale clears `fresh`.
inline constexpr int kScaleNumbers = 5 + Fp8Scale::kHistory;
struct ScaleOwner {
  const void* owner = nullptr;
  int role = 0;
  Fp8 kind = Fp8::e4m3;
};
void save_scales(float* numbers, std::span<const ScaleOwner> of, const device::Stream& stream);
void load_scales(const float* numbers, std::span<const ScaleOwner> of, const device::Stream& stream);
// Once a step: all scales of the queue follow what was seen since the last time.
void advance_scales(const device::Stream& stream);

// Whether linear maps of this queue are to be made of 8-bit products (GemmSettings::fp8).
bool wants_fp8(const device::Stream& stream);

}  // namespace esp::kernel::cuda
