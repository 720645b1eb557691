// Strict JSON parser: duplicate keys, nesting deeper than 32 and trailing text are errors with line and column.
#pragma once

#include <cstddef>
#include <string_view>

#include <nlohmann/json_fwd.hpp>

namespace esp {

using Json = nlohmann::ordered_json;

inline constexpr size_t kMaxJsonBytes = size_t{100} << 20;
inline constexpr int kMaxJsonDepth = 32;

// `what` names the source in messages («schedule file ring.json»). Throws IoError if the text is invalid.
Json parse_json(std::string_view text, std::string_view what, size_t max_bytes = kMaxJsonBytes);

}  // namespace esp
