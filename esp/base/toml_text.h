// Checks a TOML text before toml++ 3.3 parses it. That version has undefined behaviour for non-ASCII letters outside
// strings and comments; TOML does not allow them there. It also recurses once per part of a dotted key when it destroys
// its tables, so a key with very many parts overflows the stack.
#pragma once

#include <cstddef>
#include <string_view>

namespace esp {

inline constexpr size_t kMaxTomlDepth = 16;  // limit for the nesting of brackets, and for the parts of a dotted key

// Throws a UsageError with line and column if the text is not accepted. `name`: the file, for the message.
void check_toml_text(std::string_view text, std::string_view name);

}  // namespace esp
