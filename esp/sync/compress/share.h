// Number of n elements that a sparsifier keeps.
#pragma once

#include <algorithm>
#include <cmath>
#include <string_view>

#include <fmt/format.h>

#include "esp/base/error.h"
#include "esp/sync/compress/arguments.h"

namespace esp::sync {

// Rounds up, so that K/n is at least the requested fraction; the subtraction keeps 0.07 of 100 at 7.
inline int64_t kept_of(const Arguments::Share& share, int64_t count) {
  if (share.count) return std::min(share.count, count);
  return std::min(count, static_cast<int64_t>(std::ceil(share.fraction * static_cast<double>(count) * (1 - 1e-12))));
}

inline void check_share(std::string_view name, const Arguments::Share& share, int64_t count) {
  if (share.count > count)
    throw UsageError(
        fmt::format("{}:{}: exceeds the {} values of the vector. Use 1 to {}, or a fraction such as {}:0.01.", name,
                    share.count, count, count, name));
}

}  // namespace esp::sync
