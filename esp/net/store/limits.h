// What every store refuses alike.
#pragma once

#include <string_view>

namespace esp::net {

// UsageError when the key is empty or too long, or the value too long.
void check_store_sizes(std::string_view key, std::string_view value);

}  // namespace esp::net
