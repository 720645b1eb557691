#include "esp/net/store/limits.h"

#include <fmt/format.h>

#include "esp/base/error.h"
#include "esp/net/store.h"

namespace esp::net {

void check_store_sizes(std::string_view key, std::string_view value) {
  if (key.empty() || key.size() > kMaxKeyBytes)
    throw UsageError(
        fmt::format("key of the rendezvous store: got {} bytes; expected 1 to {}", key.size(), kMaxKeyBytes));
  if (value.size() > kMaxValueBytes)
    throw UsageError(
        fmt::format("value in the rendezvous store: got {} bytes; expected at most {}", value.size(), kMaxValueBytes));
}

}  // namespace esp::net
