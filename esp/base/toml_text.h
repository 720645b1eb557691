// Checks a TOML text before toml++ 3.3 reads it. That version has undefined behaviour on letters beyond ASCII outside
// strings and comments, where TOML does not allow them. It also recurses once per part of a dotted key when it frees
// its tables, so that a deep key overflows the stack.
#pragma once

#include <cstddef>
#include <string_view>

namespace esp {

inline constexpr size_t kMaxTomlDepth = 16;  // of brackets, and parts of a dotted key

// UsageError with line and column.
void check_toml_text(std::string_view text, std::string_view name);

}  // namespace esp
