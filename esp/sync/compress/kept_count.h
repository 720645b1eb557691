// The number of elements that a sparsifier (topk, randomk) keeps.
#pragma once

#include <algorithm>
#include <cmath>
#include <string_view>

#include <fmt/format.h>

#include "esp/base/error.h"
#include "esp/sync/compress/spec_arguments.h"

namespace esp::sync {

// n·fraction rounded up, so that K/n is at least the requested fraction. The factor 1 − 1e-12 compensates
// floating-point errors: 0.07 of 100 gives 7, not 8.
inline int64_t kept_count(const SpecArguments::FractionOrCount& share, int64_t count) {
  if (share.count) return std::min(share.count, count);
  return std::min(count, static_cast<int64_t>(std::ceil(share.fraction * static_cast<double>(count) * (1 - 1e-12))));
}

inline void check_share(std::string_view name, const SpecArguments::FractionOrCount& share, int64_t count) {
  if (share.count > count)
    throw UsageError(
        fmt::format("{}: got {} elements to keep; expected at most {}, the length of the vector. Use 1 to {}, or a "
                    "fraction such as {}:0.01.",
                    name, share.count, count, count, name));
}

}  // namespace esp::sync
