#include "apps/espalier/lab_bars.h"

#include <algorithm>
#include <cmath>
#include <iterator>

#include <fmt/format.h>

#include "apps/espalier/lab_svg.h"

namespace esp::app {
namespace {

constexpr const char* kShades[] = {"█", "▓", "▒", "░", "▪", "·"};
constexpr const char* kMark = "|";

const char* shade(size_t part) {
  return kShades[part % std::size(kShades)];
}

double longest(const BarChart& chart) {
  double most = 0;
  for (const Bar& bar : chart.bars) {
    double sum = 0;
    for (double part : bar.parts) sum += part;
    most = std::max({most, sum, bar.mark});
  }
  return most > 0 ? most : 1;
}

// Each part ends at the rounded sum of all parts so far, so rounding errors do not accumulate.
std::string shaded(const Bar& bar, double per_column, size_t columns) {
  std::vector<std::string> cells;
  double sum = 0;
  for (size_t part = 0; part < bar.parts.size(); ++part) {
    sum += bar.parts[part];
    const auto end = static_cast<size_t>(std::lround(sum / per_column));
    while (cells.size() < end) cells.emplace_back(shade(part));
  }
  cells.resize(std::max(cells.size(), columns + 1), " ");
  if (bar.mark > 0) cells[static_cast<size_t>(std::lround(bar.mark / per_column))] = kMark;
  std::string text;
  for (const std::string& cell : cells) text += cell;
  return text;
}

}  // namespace

std::string bars_text(const BarChart& chart, int columns) {
  const double per_column = longest(chart) / columns;
  size_t widest = 0;
  for (const Bar& bar : chart.bars) widest = std::max(widest, bar.name.size());
  std::string text = chart.title + "\n";
  for (const Bar& bar : chart.bars)
    text += fmt::format("  {:<{}} {} {}\n", bar.name, widest, shaded(bar, per_column, static_cast<size_t>(columns)),
                        bar.note);
  text += " ";
  for (size_t part = 0; part < chart.parts.size(); ++part)
    text += fmt::format(" {} {} ", shade(part), chart.parts[part]);
  if (!chart.mark.empty()) text += fmt::format(" {} {}", kMark, chart.mark);
  return text + "\n";
}

std::string bars_svg(const BarChart& chart) {
  constexpr double kWidth = 900, kLeft = 170, kRight = 300, kTop = 84, kPitch = 40, kThick = 24;
  const double per_pixel = longest(chart) / (kWidth - kLeft - kRight);
  std::string svg = svg_open(kWidth, kTop + kPitch * static_cast<double>(chart.bars.size()) + 20);
  svg += svg_text(20, 28, "start", chart.title, "font-weight=\"bold\"");
  double x = 20;
  for (size_t part = 0; part < chart.parts.size(); ++part) {
    svg += fmt::format("<rect x=\"{:.1f}\" y=\"46\" width=\"12\" height=\"12\" fill=\"{}\"/>\n", x, svg_colour(part));
    svg += svg_text(x + 18, 57, "start", chart.parts[part]);
    x += 40 + 8 * static_cast<double>(chart.parts[part].size());
  }
  if (!chart.mark.empty()) {
    svg += fmt::format("<path class=\"mark\" d=\"M{0:.1f} 44V60\"/>\n", x + 6);
    svg += svg_text(x + 18, 57, "start", chart.mark);
  }
  double y = kTop;
  for (const Bar& bar : chart.bars) {
    svg += svg_text(kLeft - 10, y + kThick * 0.7, "end", bar.name);
    double at = kLeft;
    for (size_t part = 0; part < bar.parts.size(); ++part) {
      const double width = bar.parts[part] / per_pixel;
      svg += fmt::format("<rect x=\"{:.1f}\" y=\"{:.1f}\" width=\"{:.1f}\" height=\"{}\" fill=\"{}\"/>\n", at, y, width,
                         kThick, svg_colour(part));
      at += width;
    }
    if (bar.mark > 0) {
      const double mark = kLeft + bar.mark / per_pixel;
      svg += fmt::format("<path class=\"mark\" d=\"M{:.1f} {:.1f}V{:.1f}\"/>\n", mark, y - 4, y + kThick + 4);
      at = std::max(at, mark);
    }
    svg += svg_text(at + 10, y + kThick * 0.7, "start", bar.note);
    y += kPitch;
  }
  return svg + "</svg>\n";
}

}  // namespace esp::app
