#include "esp/kernel/sign.h"

#include <cmath>
#include <cstring>

namespace esp::kernel::ref {

SignSums sign_bits(uint8_t* bits, const float* x, int64_t count) {
  SignSums sums;
  std::memset(bits, 0, static_cast<size_t>((count + 7) / 8));
  for (int64_t i = 0; i < count; ++i) {
    const bool negative = x[i] < 0;
    (negative ? sums.negative : sums.positive) += std::abs(static_cast<double>(x[i]));
    sums.num_negative += negative;
    bits[i / 8] |= static_cast<uint8_t>(negative << i % 8);
  }
  return sums;
}

void decode_sign_bits(float* y, WriteMode into, const uint8_t* bits, float not_negative, float negative,
                      int64_t count) {
  for (int64_t i = 0; i < count; ++i) put(y[i], bits[i / 8] >> i % 8 & 1 ? negative : not_negative, into);
}

}  // namespace esp::kernel::ref
