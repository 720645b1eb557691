// Stacked bars, on the terminal and as SVG: a row per thing compared, its parts side by side, and a mark where it was
// expected to end.
#pragma once

#include <string>
#include <vector>

namespace esp::app {

struct Bar {
  std::string name;
  std::vector<double> parts;  // none negative
  double mark = 0;            // 0: none
  std::string note;           // behind the bar
};

struct BarChart {
  std::string title;
  std::vector<std::string> parts;  // names, in the order of Bar::parts
  std::string mark;                // what the mark says; empty: there are none
  std::vector<Bar> bars;
};

// Parts differ by shade, so that it reads without colour; `columns` is what the longest bar takes.
std::string bars_text(const BarChart& chart, int columns);
std::string bars_svg(const BarChart& chart);

}  // namespace esp::app
