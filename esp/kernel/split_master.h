// Split master weights: an fp32 number is stored as the bf16 it rounds to, plus its lower 16 bits. In addition to the
// bf16 weight this needs 2 bytes, instead of 4 bytes for a full master copy. Host memory only.
//
// The bf16 is rounded to nearest even. `low` holds the lower 16 bits unchanged; they also determine whether the bf16
// was rounded up. In a tie (one number in 65536) they do not determine this, so split_master_weights moves the number
// by one unit in its last place towards its bf16. All other numbers except NaNs are restored exactly.
#pragma once

#include <cstdint>

#include "esp/device/stream.h"

namespace esp::kernel {

void split_master_weights(uint16_t* low, const float* x, int64_t count, const device::Stream& stream);
// `high` holds the bf16 values, `low` the lower halves.
void join_master_weights(float* x, const void* high, const uint16_t* low, int64_t count, const device::Stream& stream);

}  // namespace esp::kernel
