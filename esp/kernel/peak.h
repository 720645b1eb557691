// Measured peak FLOP rate of this machine, the reference for the rates of kernels and steps.
#pragma once

#include "esp/base/dtype.h"
#include "esp/device/stream.h"

namespace esp::kernel {

// FLOP/s of independent FMAs in registers on all threads of the stream at once: the sum of each thread's best short
// burst in 50 ms. Other load only lowers a burst's rate. 16-bit types compute in fp32 and have its rate.
double fma_peak(DType dtype, const device::Stream& stream);

// The instruction set the kernels use on this machine, by Highway's name.
const char* cpu_instructions();

namespace cuda {
decltype(kernel::fma_peak) fma_peak;
}

}  // namespace esp::kernel
