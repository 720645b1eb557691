// The files of web/, embedded in the binary at build time.
#pragma once

#include <span>
#include <string_view>

namespace esp::dash {

struct EmbeddedText {
  std::string_view name, text;  // file name ("chart.js") and content
};
std::span<const EmbeddedText> embedded_texts();

}  // namespace esp::dash
