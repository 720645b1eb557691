// Combines W pushes of one range of elements: their sum in worker order, or, for robustness against faulty workers, W
// times the median or the trimmed mean of each coordinate (Yin et al. 2018).
#pragma once

#include <cstdint>
#include <span>
#include <string_view>

#include "esp/base/dtype.h"

namespace esp::sync {

enum class Aggregate : uint8_t { sum, median, trimmed_mean };
Aggregate parse_aggregate(std::string_view name);  // mean, median, trimmed_mean

// out may alias one of the pushes. `trim` values are dropped at each end; 2·trim < pushes. NaN counts as larger than
// all other values.
void combine(void* out, std::span<const void* const> pushes, int64_t count, DType dtype, Aggregate how, int trim);

}  // namespace esp::sync
