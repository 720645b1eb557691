// A picture of times against sizes: both axes logarithmic, one line per series, its name at its end. Plain SVG that
// reads on light and dark pages.
#pragma once

#include <string>
#include <utility>
#include <vector>

namespace esp::app {

struct Series {
  std::string name;
  std::vector<std::pair<double, double>> points;  // x, y > 0
  bool dashed = false;
};

std::string draw_svg(const std::string& title, const std::string& x_axis, const std::string& y_axis,
                     const std::vector<Series>& series);

}  // namespace esp::app
