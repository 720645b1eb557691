// Activation functions. gelu is the tanh approximation used by GPT-2 (`gelu_new` in other libraries). gelu_erf is the
// exact function used by BERT.
//
// forward overwrites y. backward writes dx, or adds to dx if `accumulate` is set. Computation is in fp32 for 16-bit
// types. y may equal x, and dx may equal dy. SwiGLU (gated MLP): swiglu_forward reads rows [gate | up] of 2·width
// elements and writes rows silu(gate)∘up of width elements.
#pragma once

#include <cstdint>
#include <string_view>

#include "esp/base/dtype.h"
#include "esp/device/stream.h"

namespace esp::kernel {

enum class Activation : uint8_t { none, relu, gelu, gelu_erf, silu, tanh };
std::string_view name_of(Activation activation);
Activation parse_activation(std::string_view name);  // throws UsageError with the list of valid names

void activation_forward(void* y, const void* x, int64_t count, Activation activation, DType dtype,
                        const device::Stream& stream);
void activation_backward(void* dx, const void* dy, const void* x, int64_t count, Activation activation, bool accumulate,
                         DType dtype, const device::Stream& stream);

void swiglu_forward(void* y, const void* x, int64_t rows, int64_t width, DType dtype, const device::Stream& stream);
void swiglu_backward(void* dx, const void* dy, const void* x, int64_t rows, int64_t width, DType dtype,
                     const device::Stream& stream);

namespace ref {
void activation_forward(void* y, const void* x, int64_t count, Activation activation, DType dtype);
void activation_backward(void* dx, const void* dy, const void* x, int64_t count, Activation activation, bool accumulate,
                         DType dtype);
void swiglu_forward(void* y, const void* x, int64_t rows, int64_t width, DType dtype);
void swiglu_backward(void* dx, const void* dy, const void* x, int64_t rows, int64_t width, DType dtype);
}  // namespace ref

namespace cuda {
decltype(kernel::activation_forward) activation_forward;
decltype(kernel::activation_backward) activation_backward;
decltype(kernel::swiglu_forward) swiglu_forward;
decltype(kernel::swiglu_backward) swiglu_backward;
}  // namespace cuda

}  // namespace esp::kernel
