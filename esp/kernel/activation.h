// Activation functions. gelu is the tanh form of GPT-2 (`gelu_new` elsewhere), gelu_erf the exact form of BERT.
//
// forward overwrites y; backward writes dx, or adds to it with `accumulate`. 16-bit types compute in fp32. y may equal
// x, dx may equal dy. swiglu reads rows of [gate | up], 2·width wide, and writes silu(gate)∘up, width wide.
#pragma once

#include <cstdint>
#include <string_view>

#include "esp/base/dtype.h"
#include "esp/device/stream.h"

namespace esp::kernel {

enum class Activation : uint8_t { none, relu, gelu, gelu_erf, silu, tanh };
std::string_view name_of(Activation activation);
Activation parse_activation(std::string_view name);  // UsageError lists the known names

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
