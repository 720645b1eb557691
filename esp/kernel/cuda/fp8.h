// FP8 GEMMs with delayed scaling: a scale per tensor, from the largest magnitudes of earlier steps, so that a tensor is
// read once. No CUDA types here; all pointers are device pointers.
//
// e4m3 (largest 448) for weights and activations, e5m2 (largest 57344) for gradients. Larger values saturate; NaN stays
// NaN. The library multiplies rows by rows only (A [m, k], B [n, k]), so `quantize_fp8` can also write the transposed
// matrix, for backward GEMMs. Rows and columns are multiples of 16, addresses 16-byte aligned.
#pragma once

#include <cstdint>

#include "esp/base/dtype.h"
#include "esp/device/stream.h"

namespace esp::kernel::cuda {

enum class Fp8 : uint8_t { e4m3, e5m2 };
inline double largest_of(Fp8 kind) {
  return kind == Fp8::e4m3 ? 448 : 57344;
}

// State of one tensor's scale, kept between steps.
struct alignas(16) Fp8Scale {
  // Decoding factor; read by the library, 16-byte aligned.
  alignas(16) float inverse = 1;
  alignas(16) float scale = 1;  // encoding factor
  float amax = 0;               // the largest magnitude seen since the last update
  static constexpr int kHistory = 16;
  float history[kHistory] = {};
  int32_t next = 0;
};

// q = fp8(x·scale) [rows, cols] and, where given, transposed [cols, rows]; scale->amax = max(itself, max|x|). bf16,
// f16, f32.
void quantize_fp8(void* q, void* transposed, const void* x, int64_t rows, int64_t cols, Fp8Scale* scale, Fp8 kind,
                  DType dtype, const device::Stream& stream);

// For `count` tensors: amax into the history and back to 0, scale = largest/(the history's maximum) rounded down to a
// power of two. One without a finite positive maximum keeps its scale.
void update_fp8_scales(Fp8Scale* scales, int64_t count, Fp8 kind, const device::Stream& stream);

struct Fp8GemmOptions {
  Fp8 kind_a = Fp8::e4m3, kind_b = Fp8::e4m3;  // not both e5m2
  const void* bias = nullptr;                  // n, of C's type
  bool accumulate = false;                     // C += …
  bool fast_sums = false;                      // sums with fewer bits inside the tensor cores: faster, for forward
};
// C [m, n] = A·Bᵀ with A [m, k], B [n, k]; C in bf16 or f16. Sums in fp32.
void gemm_fp8(void* c, const void* a, const Fp8Scale* scale_a, const void* b, const Fp8Scale* scale_b, int64_t m,
              int64_t n, int64_t k, const Fp8GemmOptions& options, DType dtype, const device::Stream& stream);

}  // namespace esp::kernel::cuda
