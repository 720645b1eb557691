// Combines the pushes of W workers for one range of elements. mean: their sum in worker order. For robustness against
// faulty workers: W times the median, or W times the trimmed mean, of each coordinate (Yin et al. 2018).
#pragma once

#include <cstdint>
#include <span>
#include <string_view>

#include "esp/base/dtype.h"

namespace esp::sync {

enum class Aggregate : uint8_t { sum, median, trimmed_mean };
Aggregate parse_aggregate(std::string_view name);  // `name`: mean, median or trimmed_mean

// `out` may be one of the pushes. trimmed_mean drops the `trim` smallest and the `trim` largest values; requires 2·trim
// < number of pushes. NaN counts as larger than all other values.
void combine(void* out, std::span<const void* const> pushes, int64_t count, DType dtype, Aggregate how, int trim);

}  // namespace esp::sync
