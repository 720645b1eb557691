// FP8 GEMMs with delayed scaling. Each tensor has one scale, computed from the largest magnitudes of earlier steps, so
// that the tensor is read only once. No CUDA types here; all pointers are device pointers.
//
// Weights and activations use e4m3 (largest value 448). Gradients use e5m2 (largest value 57344). Larger values
// saturate, and NaN stays NaN. cuBLASLt multiplies rows by rows only (A [m, k], B [n, k]). For the backward GEMMs,
// `quantize_fp8` can therefore also write the transposed matrix. Rows and columns must be multiples of 16, and
// addresses 16-byte aligned.
#pragma once

#include <cstdint>

#include "esp/base/dtype.h"
#include "esp/device/stream.h"

namespace esp::kernel::cuda {

enum class Fp8 : uint8_t { e4m3, e5m2 };
inline double largest_of(Fp8 kind) {
  return kind == Fp8::e4m3 ? 448 : 57344;
}

// State of the scale of one tensor, kept between steps.
struct alignas(16) Fp8Scale {
  // The decoding factor, 1/scale. cuBLASLt reads it and requires 16-byte alignment.
  alignas(16) float inverse = 1;
  alignas(16) float scale = 1;  // encoding factor: fp8 value = x·scale
  float amax = 0;               // the largest magnitude seen since the last update
  static constexpr int kHistory = 16;
  float history[kHistory] = {};
  int32_t next = 0;
};

// q = fp8(x·scale), [rows, cols]. `transposed`, if not null, receives the same values as [cols, rows]. Sets scale->amax
// = max(scale->amax, max|x|). x is bf16, f16 or f32.
void quantize_fp8(void* q, void* transposed, const void* x, int64_t rows, int64_t cols, Fp8Scale* scale, Fp8 kind,
                  DType dtype, const device::Stream& stream);

// Updates `count` scales of one kind. Moves amax to the history and resets it to 0. Then scale = largest value of the
// kind / maximum of the history, rounded down to a power of two. If that maximum is not finite or not positive, the
// scale does not change.
void update_fp8_scales(Fp8Scale* scales, int64_t count, Fp8 kind, const device::Stream& stream);

struct Fp8GemmOptions {
  Fp8 kind_a = Fp8::e4m3, kind_b = Fp8::e4m3;  // at most one of the operands may be e5m2
  const void* bias = nullptr;                  // n elements of C's type; null: no bias
  bool accumulate = false;                     // add A·Bᵀ to C instead of overwriting C
  bool fast_sums = false;                      // faster sums with fewer bits inside the tensor cores; used for forward
};
// C [m, n] = A·Bᵀ with A [m, k] and B [n, k]. C is bf16 or f16. Sums are in fp32.
void gemm_fp8(void* c, const void* a, const Fp8Scale* scale_a, const void* b, const Fp8Scale* scale_b, int64_t m,
              int64_t n, int64_t k, const Fp8GemmOptions& options, DType dtype, const device::Stream& stream);

}  // namespace esp::kernel::cuda
