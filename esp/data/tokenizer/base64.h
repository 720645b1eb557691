// Strict base64 decoder: padding is required. Returns nullopt for anything else.
#pragma once

#include <optional>
#include <string>
#include <string_view>

namespace esp::data {

std::optional<std::string> from_base64(std::string_view text);

}  // namespace esp::data
