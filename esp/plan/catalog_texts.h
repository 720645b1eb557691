// The descriptions of catalog/*.toml as they were when the binary was built.
#pragma once

#include <span>
#include <string_view>

namespace esp::plan {

struct EmbeddedText {
  std::string_view name, text;  // "processors.toml"
};
std::span<const EmbeddedText> embedded_texts();

}  // namespace esp::plan
