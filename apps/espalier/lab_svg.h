// Building blocks of the labs' pictures: plain SVG for light and dark pages.
#pragma once

#include <cstddef>
#include <string>

namespace esp::app {

// The opening tag, the styles (class `grid` for thin lines) and the background. The caller appends "</svg>".
std::string svg_open(double width, double height);
std::string svg_escaped(const std::string& text);
// `anchor` is start, middle or end. `more` contains additional attributes.
std::string svg_text(double x, double y, const char* anchor, const std::string& text, const std::string& more = "");
// One of a few distinct colours; after the last one they repeat.
const char* svg_colour(size_t index);

}  // namespace esp::app
