// A line chart of times against sizes, or of plain numbers: both axes logarithmic, one line per series, its name at its
// end. Plain SVG for light and dark pages.
#pragma once

#include <cstdint>
#include <string>
#include <utility>
#include <vector>

namespace esp::app {

struct Series {
  std::string name;
  std::vector<std::pair<double, double>> points;  // x, y > 0
  bool dashed = false;
};

enum class Axes : uint8_t { time_of_bytes, plain };  // format of ticks: 64 KiB and 3 ms, or 1000 and 10⁻³

std::string draw_svg(const std::string& title, const std::string& x_axis, const std::string& y_axis,
                     const std::vector<Series>& series, Axes axes = Axes::time_of_bytes);

}  // namespace esp::app
