#include "esp/kernel/orthonormalise.h"

#include <cmath>

namespace esp::kernel::ref {
namespace {

double dot(const float* a, const float* b, int64_t count) {
  double sum = 0;
  for (int64_t i = 0; i < count; ++i) sum += static_cast<double>(a[i]) * static_cast<double>(b[i]);
  return sum;
}

}  // namespace

void orthonormalise_rows(float* rows, int64_t num_rows, int64_t count) {
  for (int64_t r = 0; r < num_rows; ++r) {
    float* row = rows + r * count;
    const double before = std::sqrt(dot(row, row, count));
    for (int pass = 0; pass < 2; ++pass)
      for (int64_t q = 0; q < r; ++q) {
        const auto along = static_cast<float>(dot(row, rows + q * count, count));
        for (int64_t i = 0; i < count; ++i) row[i] -= along * rows[q * count + i];
      }
    const double after = std::sqrt(dot(row, row, count));
    const auto factor = after <= 1e-6 * before ? 0.0f : static_cast<float>(1 / after);
    for (int64_t i = 0; i < count; ++i) row[i] *= factor;
  }
}

}  // namespace esp::kernel::ref
