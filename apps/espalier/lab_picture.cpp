#include "apps/espalier/lab_picture.h"

#include <algorithm>
#include <cmath>

#include <fmt/format.h>

#include "apps/espalier/machine.h"

namespace esp::app {
namespace {

constexpr double kWidth = 860, kHeight = 520, kLeft = 80, kRight = 190, kTop = 50, kBottom = 60;
// Mid-tone hues that keep their contrast on white and on black.
constexpr const char* kColours[] = {"#2f7ed8", "#d9730d", "#2a9d5c", "#a05bd6", "#d6436e", "#8a8f98", "#b8860b"};

struct Axis {
  double low, high, from, to;  // values, pixels
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

std::string escaped(const std::string& text) {
  std::string out;
  for (char c : text) out += c == '<' ? "&lt;" : c == '&' ? "&amp;" : std::string(1, c);
  return out;
}

std::string text_at(double x, double y, const char* anchor, const std::string& text, const std::string& more = "") {
  return fmt::format("<text x=\"{:.1f}\" y=\"{:.1f}\" text-anchor=\"{}\" {}>{}</text>\n", x, y, anchor, more,
                     escaped(text));
}

}  // namespace

std::string draw_svg(const std::string& title, const std::string& x_axis, const std::string& y_axis,
                     const std::vector<Series>& series) {
  Axis x{1e300, 0, kLeft, kWidth - kRight}, y{1e300, 0, kHeight - kBottom, kTop};
  for (const Series& line : series)
    for (auto [a, b] : line.points) {
      x.low = std::min(x.low, a), x.high = std::max(x.high, a);
      y.low = std::min(y.low, b), y.high = std::max(y.high, b);
    }
  std::string svg = fmt::format(
      "<svg xmlns=\"http://www.w3.org/2000/svg\" viewBox=\"0 0 {0} {1}\" width=\"{0}\" height=\"{1}\" role=\"img\">\n"
      "<style>text{{font:13px sans-serif;fill:#333}}.grid{{stroke:#8884;stroke-width:1}}.bg{{fill:#fff}}"
      "@media(prefers-color-scheme:dark){{text{{fill:#ddd}}.bg{{fill:#111}}}}</style>\n"
      "<rect class=\"bg\" width=\"100%\" height=\"100%\"/>\n",
      kWidth, kHeight);
  svg += text_at(kLeft, 28, "start", title, "font-weight=\"bold\"");
  for (double bytes = std::exp2(std::ceil(std::log2(x.low))); bytes <= x.high * 1.001; bytes *= 4) {
    svg += fmt::format("<path class=\"grid\" d=\"M{0:.1f} {1}V{2}\"/>\n", x.at(bytes), kTop, kHeight - kBottom);
    svg += text_at(x.at(bytes), kHeight - kBottom + 20, "middle", human_bytes(static_cast<uint64_t>(bytes)));
  }
  for (double us = std::pow(10, std::floor(std::log10(y.low))); us <= y.high * 1.001; us *= 10) {
    if (us < y.low) continue;
    svg += fmt::format("<path class=\"grid\" d=\"M{} {:.1f}H{}\"/>\n", kLeft, y.at(us), kWidth - kRight);
    svg += text_at(kLeft - 8, y.at(us) + 4, "end", micro(us));
  }
  svg += text_at((kLeft + kWidth - kRight) / 2, kHeight - 16, "middle", x_axis);
  svg += fmt::format("<text transform=\"translate(18 {}) rotate(-90)\" text-anchor=\"middle\">{}</text>\n", kHeight / 2,
                     escaped(y_axis));

  // Names at the lines' ends, pushed apart where ends lie close.
  std::vector<std::pair<double, size_t>> ends;
  for (size_t i = 0; i < series.size(); ++i) {
    if (series[i].points.empty()) continue;
    std::string path;
    for (auto [a, b] : series[i].points)
      path += fmt::format("{}{:.1f} {:.1f}", path.empty() ? "M" : "L", x.at(a), y.at(b));
    svg += fmt::format("<path d=\"{}\" fill=\"none\" stroke=\"{}\" stroke-width=\"2\"{}/>\n", path,
                       kColours[i % std::size(kColours)], series[i].dashed ? " stroke-dasharray=\"5 4\"" : "");
    ends.emplace_back(y.at(series[i].points.back().second), i);
  }
  std::sort(ends.begin(), ends.end());
  double last = -1e9;
  for (auto [height, i] : ends) {
    last = std::max(height, last + 16);
    svg += text_at(x.at(series[i].points.back().first) + 8, last + 4, "start", series[i].name,
                   fmt::format("style=\"fill:{}\"", kColours[i % std::size(kColours)]));
  }
  return svg + "</svg>\n";
}

}  // namespace esp::app
