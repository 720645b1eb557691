#include "esp/sync/ps/combine.h"

#include <algorithm>
#include <cmath>
#include <vector>

#include "esp/base/check.h"
#include "esp/base/table.h"
#include "esp/kernel/elementwise.h"
#include "esp/kernel/reduce.h"

namespace esp::sync {
namespace {

struct Row {
  std::string_view name;
  Aggregate how;
};
constexpr Row kRows[] = {
    {"mean", Aggregate::sum}, {"median", Aggregate::median}, {"trimmed_mean", Aggregate::trimmed_mean}};

constexpr int64_t kTile = 1024;

bool less_nan_last(double a, double b) {
  if (std::isnan(b)) return !std::isnan(a);
  return a < b;
}

// The mean of `values` without the `trim` smallest and the `trim` largest of them.
double trimmed_mean_of(std::vector<double>& values, int trim) {
  std::sort(values.begin(), values.end(), less_nan_last);
  double sum = 0;
  const auto first = static_cast<size_t>(trim), last = values.size() - first;
  for (size_t i = first; i < last; ++i) sum += values[i];
  return sum / static_cast<double>(last - first);
}

}  // namespace

Aggregate parse_aggregate(std::string_view name) {
  return find_row("sync.aggregate", kRows, name).how;
}

void combine(void* out, std::span<const void* const> pushes, int64_t count, DType dtype, Aggregate how, int trim) {
  const auto num = static_cast<int>(pushes.size());
  if (how == Aggregate::sum)
    return kernel::reduce_ordered(out, pushes.data(), num, static_cast<size_t>(count), dtype, kernel::ReduceOp::sum);
  if (how == Aggregate::median) trim = (num - 1) / 2;
  ESP_CHECK(2 * trim < num, "trimmed mean: got trim = {}; expected 2 * trim < {}, the number of pushes", trim, num);
  const device::Stream alone;
  const size_t element = size_of(dtype);
  std::vector<double> tile(static_cast<size_t>(num) * kTile), column(static_cast<size_t>(num));
  for (int64_t at = 0; at < count; at += kTile) {
    const int64_t width = std::min(kTile, count - at);
    const size_t skip = static_cast<size_t>(at) * element;
    for (int i = 0; i < num; ++i)
      kernel::cast(tile.data() + i * kTile, DType::f64,
                   static_cast<const std::byte*>(pushes[static_cast<size_t>(i)]) + skip, dtype, width, alone);
    for (int64_t j = 0; j < width; ++j) {
      for (int i = 0; i < num; ++i) column[static_cast<size_t>(i)] = tile[static_cast<size_t>(i * kTile + j)];
      tile[static_cast<size_t>(j)] = num * trimmed_mean_of(column, trim);
    }
    kernel::cast(static_cast<std::byte*>(out) + skip, dtype, tile.data(), DType::f64, width, alone);
  }
}

}  // namespace esp::sync
