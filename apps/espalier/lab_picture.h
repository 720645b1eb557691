// A line chart of times over sizes, or of plain numbers. Both axes are logarithmic. Each series is a line with its name
// at the right end. Plain SVG for light and dark pages.
#pragma once

#include <cstdint>
#include <string>
#include <utility>
#include <vector>

namespace esp::app {

struct PictureSeries {
  std::string name;
  std::vector<std::pair<double, double>> points;  // (x, y), both > 0
  bool dashed = false;
};

// Format of the axis labels. time_of_bytes: "64 KiB" and "3 ms"; plain: 1000 and 10⁻³.
enum class Axes : uint8_t { time_of_bytes, plain };

std::string draw_svg(const std::string& title, const std::string& x_axis, const std::string& y_axis,
                     const std::vector<PictureSeries>& series, Axes axes = Axes::time_of_bytes);

}  // namespace esp::app
