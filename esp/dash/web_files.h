// The files of web/ as they were when the binary was built.
#pragma once

#include <span>
#include <string_view>

namespace esp::dash {

struct EmbeddedText {
  std::string_view name, text;  // "chart.js"
};
std::span<const EmbeddedText> embedded_texts();

}  // namespace esp::dash
