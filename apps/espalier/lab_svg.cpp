#include "apps/espalier/lab_svg.h"

#include <iterator>

#include <fmt/format.h>

namespace esp::app {
namespace {

// Colours of medium brightness, which have contrast on white and on black.
constexpr const char* kColours[] = {"#2f7ed8", "#d9730d", "#2a9d5c", "#a05bd6", "#d6436e", "#8a8f98", "#b8860b"};

}  // namespace

std::string svg_open(double width, double height) {
  return fmt::format(
      "<svg xmlns=\"http://www.w3.org/2000/svg\" viewBox=\"0 0 {0} {1}\" width=\"{0}\" height=\"{1}\" role=\"img\">\n"
      "<style>text{{font:13px sans-serif;fill:#333}}.grid{{stroke:#8884;stroke-width:1}}.bg{{fill:#fff}}"
      ".mark{{stroke:#333;stroke-width:2}}"
      "@media(prefers-color-scheme:dark){{text{{fill:#ddd}}.bg{{fill:#111}}.mark{{stroke:#ddd}}}}</style>\n"
      "<rect class=\"bg\" width=\"100%\" height=\"100%\"/>\n",
      width, height);
}

std::string svg_escaped(const std::string& text) {
  std::string out;
  for (char c : text) out += c == '<' ? "&lt;" : c == '&' ? "&amp;" : std::string(1, c);
  return out;
}

std::string svg_text(double x, double y, const char* anchor, const std::string& text, const std::string& more) {
  return fmt::format("<text x=\"{:.1f}\" y=\"{:.1f}\" text-anchor=\"{}\" {}>{}</text>\n", x, y, anchor, more,
                     svg_escaped(text));
}

const char* svg_colour(size_t index) {
  return kColours[index % std::size(kColours)];
}

}  // namespace esp::app
