// Stacked bar charts, as text for the terminal and as SVG. Each bar shows the parts of one case, and a mark at the
// expected total.
#pragma once

#include <string>
#include <vector>

namespace esp::app {

struct Bar {
  std::string name;
  std::vector<double> parts;  // non-negative
  double mark = 0;            // expected total; 0: no mark
  std::string note;           // printed after the bar
};

struct BarChart {
  std::string title;
  std::vector<std::string> parts;  // names, in the order of Bar::parts
  std::string mark;                // meaning of the marks for the legend; empty: the chart has no marks
  std::vector<Bar> bars;
};

// Parts differ by shade, so they are readable without colour. `columns` is the width of the longest bar.
std::string bars_text(const BarChart& chart, int columns);
std::string bars_svg(const BarChart& chart);

}  // namespace esp::app
