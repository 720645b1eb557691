// W pushes of one run of elements made one: their sum in worker order, or, where some may be bad, W times the median or
// the trimmed mean of each coordinate (Yin et al. 2018), which stands in for the sum.
#pragma once

#include <cstdint>
#include <span>
#include <string_view>

#include "esp/base/dtype.h"

namespace esp::sync {

enum class Aggregate : uint8_t { sum, median, trimmed_mean };
Aggregate parse_aggregate(std::string_view name);  // of mean, median, trimmed_mean

// out may be one of the pushes. `trim` values are left out at either end; 2·trim < pushes. Values that are not numbers
// count as larger than all others.
void combine(void* out, std::span<const void* const> pushes, int64_t count, DType dtype, Aggregate how, int trim);

}  // namespace esp::sync
