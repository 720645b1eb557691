// How fast multiply-adds can go on this machine, measured: what a kernel's or a step's rate is held against.
#pragma once

#include "esp/base/dtype.h"
#include "esp/device/stream.h"

namespace esp::kernel {

// FLOP/s of independent multiply-adds in registers on all of the stream's threads, the best of a few short bursts
// (about 10 ms in all). 16-bit types compute in fp32 and have its rate.
double fma_peak(DType dtype, const device::Stream& stream);

namespace cuda {
decltype(kernel::fma_peak) fma_peak;
}

}  // namespace esp::kernel
