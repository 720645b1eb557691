#include "apps/espalier/lab_picture.h"

#include <algorithm>
#include <cmath>

#include <fmt/format.h>

#include "apps/espalier/lab_svg.h"
#include "apps/espalier/machine.h"

namespace esp::app {
namespace {

constexpr double kWidth = 860, kHeight = 520, kLeft = 80, kRight = 190, kTop = 50, kBottom = 60;

struct Axis {
  double low, high, from, to;  // low and high are values; from and to are their positions in pixels
  double at(double value) const {
    double span = std::max(1e-9, std::log(high) - std::log(low));
    return from + (std::log(value) - std::log(low)) / span * (to - from);
  }
};

std::string micro(double us) {
  return us >= 1e6   ? fmt::format("{:g} s", us / 1e6)
         : us >= 1e3 ? fmt::format("{:g} ms", us / 1e3)
                     : fmt::format("{:g} µs", us);
}

std::string tick_x(double value, Axes axes) {
  return axes == Axes::plain ? fmt::format("{:g}", value) : human_bytes(static_cast<uint64_t>(value));
}

std::string tick_y(double value, Axes axes) {
  return axes == Axes::plain ? fmt::format("{:g}", value) : micro(value);
}

// Number of decades between grid lines. A picture with many decades gets about eight lines.
double decades(const Axis& axis) {
  return std::max(1.0, std::ceil(std::log10(axis.high / axis.low) / 8));
}

}  // namespace

std::string draw_svg(const std::string& title, const std::string& x_axis, const std::string& y_axis,
                     const std::vector<PictureSeries>& series, Axes axes) {
  Axis x{1e300, 0, kLeft, kWidth - kRight}, y{1e300, 0, kHeight - kBottom, kTop};
  for (const PictureSeries& line : series)
    for (auto [a, b] : line.points) {
      x.low = std::min(x.low, a), x.high = std::max(x.high, a);
      y.low = std::min(y.low, b), y.high = std::max(y.high, b);
    }
  std::string svg = svg_open(kWidth, kHeight);
  svg += svg_text(kLeft, 28, "start", title, "font-weight=\"bold\"");
  for (double bytes = std::exp2(std::ceil(std::log2(x.low))); bytes <= x.high * 1.001; bytes *= 4) {
    svg += fmt::format("<path class=\"grid\" d=\"M{0:.1f} {1}V{2}\"/>\n", x.at(bytes), kTop, kHeight - kBottom);
    svg += svg_text(x.at(bytes), kHeight - kBottom + 20, "middle", tick_x(bytes, axes));
  }
  for (double us = std::pow(10, std::floor(std::log10(y.low))); us <= y.high * 1.001; us *= std::pow(10, decades(y))) {
    if (us < y.low) continue;
    svg += fmt::format("<path class=\"grid\" d=\"M{} {:.1f}H{}\"/>\n", kLeft, y.at(us), kWidth - kRight);
    svg += svg_text(kLeft - 8, y.at(us) + 4, "end", tick_y(us, axes));
  }
  svg += svg_text((kLeft + kWidth - kRight) / 2, kHeight - 16, "middle", x_axis);
  svg += fmt::format("<text transform=\"translate(18 {}) rotate(-90)\" text-anchor=\"middle\">{}</text>\n", kHeight / 2,
                     svg_escaped(y_axis));

  // Each line's name is printed at its right end. Names that would overlap are moved apart.
  std::vector<std::pair<double, size_t>> ends;
  for (size_t i = 0; i < series.size(); ++i) {
    if (series[i].points.empty()) continue;
    std::string path;
    for (auto [a, b] : series[i].points)
      path += fmt::format("{}{:.1f} {:.1f}", path.empty() ? "M" : "L", x.at(a), y.at(b));
    svg += fmt::format("<path d=\"{}\" fill=\"none\" stroke=\"{}\" stroke-width=\"2\"{}/>\n", path, svg_colour(i),
                       series[i].dashed ? " stroke-dasharray=\"5 4\"" : "");
    ends.emplace_back(y.at(series[i].points.back().second), i);
  }
  std::sort(ends.begin(), ends.end());
  double last = -1e9;
  for (auto [height, i] : ends) {
    last = std::max(height, last + 16);
    svg += svg_text(x.at(series[i].points.back().first) + 8, last + 4, "start", series[i].name,
                    fmt::format("style=\"fill:{}\"", svg_colour(i)));
  }
  return svg + "</svg>\n";
}

}  // namespace esp::app
