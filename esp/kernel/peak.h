// Peak FLOP rate of this machine: measured for the CPU, theoretical for a GPU. The FLOP rates of kernels and training
// steps are reported as a fraction of it.
#pragma once

#include "esp/base/dtype.h"
#include "esp/device/stream.h"

namespace esp::kernel {

// Returns the peak in FLOP/s. On the CPU, all threads of the stream run independent FMAs in registers at the same time
// for 50 ms, in short bursts. The result is the sum of each thread's best burst, because other load on the machine only
// makes bursts slower. On the CPU, 16-bit types compute in fp32, so they have the rate of fp32.
double fma_peak(DType dtype, const device::Stream& stream);

// Returns the name of the instruction set that the kernels use on this CPU, as the Highway library calls it.
const char* cpu_instructions();

namespace cuda {
decltype(kernel::fma_peak) fma_peak;
}

}  // namespace esp::kernel
