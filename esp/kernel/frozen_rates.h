// Step factors of 1-bit Adam. After the warm-up the variance v is frozen. For each element, rate = 1/(√v + ε) and
// mask = 1; where v is 0, both are 0. Overwrites its outputs. Supports f32 and f64. It is called once per training run,
// so it is a plain loop.
#pragma once

#include <cstdint>

#include "esp/base/dtype.h"
#include "esp/device/stream.h"

namespace esp::kernel {

void frozen_rates(void* rate, void* mask, const void* v, double eps, int64_t count, DType dtype,
                  const device::Stream& stream);

}  // namespace esp::kernel
