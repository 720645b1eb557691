#include "esp/net/store/limits.h"

#include <fmt/format.h>

#include "esp/base/error.h"
#include "esp/net/store.h"

namespace esp::net {

void check_store_sizes(std::string_view key, std::string_view value) {
  if (key.empty() || key.size() > kMaxKeyBytes)
    throw UsageError(fmt::format("a store key has 1 to {} bytes, {} given", kMaxKeyBytes, key.size()));
  if (value.size() > kMaxValueBytes)
    throw UsageError(
        fmt::format("a store value has at most {} bytes, {} given for \"{}\"", kMaxValueBytes, value.size(), key));
}

}  // namespace esp::net
