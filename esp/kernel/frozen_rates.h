// Adam's step factors after its variance is frozen (1-bit Adam): rate = 1/(√v + ε) and mask = 1; both 0 where v is 0.
// Overwrites; f32 and f64. Called once, so it is a plain loop.
#pragma once

#include <cstdint>

#include "esp/base/dtype.h"
#include "esp/device/stream.h"

namespace esp::kernel {

void frozen_rates(void* rate, void* mask, const void* v, double eps, int64_t count, DType dtype,
                  const device::Stream& stream);

}  // namespace esp::kernel
