// Looks a TOML text over before toml++ sees it: version 3.3 runs into undefined behaviour on letters beyond ASCII where
// only keys and values may stand. TOML allows them in strings and comments alone.
#pragma once

#include <string_view>

namespace esp {

// UsageError with line and column.
void check_toml_text(std::string_view text, std::string_view name);

}  // namespace esp
