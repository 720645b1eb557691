// Limits shared by all stores.
#pragma once

#include <string_view>

namespace esp::net {

// UsageError if the key is empty or too long, or if the value is too long.
void check_store_sizes(std::string_view key, std::string_view value);

}  // namespace esp::net
