// The contents of catalog/*.toml, embedded at build time.
#pragma once

#include <span>
#include <string_view>

namespace esp::plan {

struct EmbeddedText {
  std::string_view name, text;  // "processors.toml"
};
std::span<const EmbeddedText> embedded_texts();

}  // namespace esp::plan
