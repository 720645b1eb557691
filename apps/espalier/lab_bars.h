// Stacked bars, on the terminal and as SVG: a row per case, its parts side by side, and a mark at the expected end.
#pragma once

#include <string>
#include <vector>

namespace esp::app {

struct Bar {
  std::string name;
  std::vector<double> parts;  // non-negative
  double mark = 0;            // 0: none
  std::string note;           // behind the bar
};

struct BarChart {
  std::string title;
  std::vector<std::string> parts;  // names, in the order of Bar::parts
  std::string mark;                // meaning of the marks; empty: there are none
  std::vector<Bar> bars;
};

// Parts differ by shade, readable without colour; `columns` is the width of the longest bar.
std::string bars_text(const BarChart& chart, int columns);
std::string bars_svg(const BarChart& chart);

}  // namespace esp::app
