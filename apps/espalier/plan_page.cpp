#include "apps/espalier/plan_page.h"

#include <algorithm>
#include <cmath>
#include <map>

#include <fmt/format.h>
#include <nlohmann/json.hpp>

#include "apps/espalier/lab_bars.h"
#include "apps/espalier/lab_svg.h"
#include "esp/plan/report.h"

namespace esp::app {
namespace {

constexpr size_t kMostBars = 32, kMostSpans = 6000;

constexpr const char* kStyle =
    "body{font:15px/1.5 system-ui,sans-serif;max-width:64rem;margin:2rem auto;padding:0 "
    "1rem;color:#222;background:#fff}"
    "h1{font-size:1.5rem}h2{font-size:1.1rem;margin-top:2rem}table{border-collapse:collapse;font-variant-numeric:"
    "tabular-nums}td,th{padding:.2rem .7rem;text-align:right;border-bottom:1px solid "
    "#8884}td:first-child,th:first-child"
    "{text-align:left}svg{max-width:100%;height:auto}li{margin:.2rem 0}"
    "@media(prefers-color-scheme:dark){body{color:#ddd;background:#111}}";

// Selects stages to show as bars: the first, the last, the fullest, and evenly spaced ones between.
std::vector<size_t> shown_stages(const std::vector<plan::Memory>& stages) {
  std::vector<size_t> shown;
  const size_t every = (stages.size() + kMostBars - 1) / kMostBars;
  size_t fullest = 0;
  for (size_t i = 0; i < stages.size(); ++i) {
    if (i % every == 0 || i + 1 == stages.size()) shown.push_back(i);
    if (stages[i].total() > stages[fullest].total()) fullest = i;
  }
  shown.push_back(fullest);
  std::sort(shown.begin(), shown.end());
  shown.erase(std::unique(shown.begin(), shown.end()), shown.end());
  return shown;
}

struct Span {
  double begin = 0, end = 0;
  int64_t device = 0, row = 0;
  std::string name;
};

std::vector<Span> spans_of(const Json& trace) {
  std::vector<Span> spans;
  if (!trace.is_object() || !trace.contains("traceEvents")) return spans;
  for (const Json& event : trace.at("traceEvents"))
    if (event.value("ph", "") == "X")
      spans.push_back({event.value("ts", 0.0), event.value("ts", 0.0) + event.value("dur", 0.0),
                       event.value("pid", int64_t{0}), event.value("tid", int64_t{0}), event.value("name", "")});
  return spans;
}

// Index of an action's colour, from the prefix of its name: forward, input gradient, weight gradient.
size_t hue_of(const std::string& name) {
  if (name.starts_with("F")) return 0;
  if (name.starts_with("B") || name.starts_with("I")) return 1;
  if (name.starts_with("W")) return 2;
  return 5;
}

}  // namespace

std::string html_page(const std::string& title, const std::vector<PageSection>& sections) {
  std::string page = fmt::format(
      "<!doctype html>\n<html lang=\"en\">\n<head>\n<meta charset=\"utf-8\">\n<meta name=\"viewport\" "
      "content=\"width=device-width,initial-scale=1\">\n<meta name=\"color-scheme\" content=\"light dark\">\n"
      "<title>{0}</title>\n<style>{1}</style>\n</head>\n<body>\n<h1>{0}</h1>\n",
      svg_escaped(title), kStyle);
  for (const PageSection& section : sections)
    page += fmt::format("<section>\n<h2>{}</h2>\n{}\n</section>\n", svg_escaped(section.head), section.body);
  return page + "</body>\n</html>\n";
}

std::string html_table(const std::vector<std::string>& head, const std::vector<std::vector<std::string>>& rows) {
  std::string text = "<table>\n<tr>";
  for (const std::string& cell : head) text += "<th>" + svg_escaped(cell) + "</th>";
  text += "</tr>\n";
  for (const auto& row : rows) {
    text += "<tr>";
    for (const std::string& cell : row) text += "<td>" + svg_escaped(cell) + "</td>";
    text += "</tr>\n";
  }
  return text + "</table>\n";
}

std::string html_list(const std::vector<std::string>& lines) {
  std::string text = "<ul>\n";
  for (const std::string& line : lines) text += "<li>" + svg_escaped(line) + "</li>\n";
  return text + "</ul>\n";
}

std::string memory_picture(const std::vector<plan::Memory>& stages, double room_bytes) {
  BarChart chart;
  chart.title = "Memory of one device per stage, GB";
  chart.parts = {"parameters", "gradients", "optimizer", "activations", "buffers", "fragmentation", "context"};
  chart.mark = "capacity";
  for (const size_t i : shown_stages(stages)) {
    const plan::Memory& m = stages[i];
    Bar bar;
    bar.name = fmt::format("stage {}", m.stage);
    for (const double part : {m.parameter, m.gradient, m.optimizer, m.activation, m.buffer, m.slack, m.other})
      bar.parts.push_back(part / 1e9);
    bar.mark = room_bytes / 1e9;
    bar.note = plan::gigabytes(m.total());
    chart.bars.push_back(bar);
  }
  return bars_svg(chart);
}

std::string time_picture(const plan::Estimate& e) {
  BarChart chart;
  const bool long_step = e.step_s >= 1;  // a long step is shown in seconds, others in milliseconds
  chart.title = long_step ? "Step time, s" : "Step time, ms";
  chart.parts = {"compute", "bubble", "exposed communication", "optimizer", "offload"};
  Bar bar;
  bar.name = "step";
  for (const double part : {e.compute_s, e.bubble_s, e.exposed_s, e.optimizer_s, e.offload_s})
    bar.parts.push_back(std::max(0.0, part) * (long_step ? 1 : 1e3));
  bar.note = plan::seconds(e.step_s);
  chart.bars.push_back(bar);
  return bars_svg(chart);
}

std::string timeline_picture(const Json& trace) {
  const std::vector<Span> spans = spans_of(trace);
  if (spans.empty() || spans.size() > kMostSpans) return "";
  std::map<std::pair<int64_t, int64_t>, double> rows;  // y position, keyed by device and row
  double end = 0;
  for (const Span& span : spans) {
    rows[{span.device, span.row}] = 0;
    end = std::max(end, span.end);
  }
  constexpr double kLeft = 90, kWidth = 900, kRow = 20;
  double y = 10;
  int64_t device = rows.begin()->first.first;
  for (auto& [key, at] : rows) {
    if (key.first != device) y += 6;
    device = key.first;
    at = y;
    y += kRow;
  }
  std::string svg = svg_open(kLeft + kWidth + 10, y + 30);
  int64_t named = -1;
  for (const auto& [key, at] : rows) {
    if (key.first != named) svg += svg_text(kLeft - 8, at + 14, "end", fmt::format("device {}", key.first));
    named = key.first;
  }
  for (const Span& span : spans)
    svg += fmt::format(
        "<rect x=\"{:.2f}\" y=\"{:.1f}\" width=\"{:.2f}\" height=\"{:.1f}\" fill=\"{}\"><title>{} {:.3f} "
        "ms</title></rect>\n",
        kLeft + span.begin / end * kWidth, rows[{span.device, span.row}],
        std::max(0.3, (span.end - span.begin) / end * kWidth - 0.3), kRow - 3, svg_colour(hue_of(span.name)),
        svg_escaped(span.name), (span.end - span.begin) / 1e3);
  svg += svg_text(kLeft + kWidth, y + 18, "end", plan::seconds(end / 1e6));
  return svg + "</svg>\n";
}

std::string landscape_picture(const std::vector<LandscapePoint>& points, double room_bytes) {
  if (points.empty()) return "";
  constexpr double kLeft = 70, kTop = 20, kWidth = 800, kHeight = 360;
  double least = points[0].time_s, most = least, memory = room_bytes;
  for (const LandscapePoint& p : points) {
    least = std::min(least, p.time_s);
    most = std::max(most, p.time_s);
    memory = std::max(memory, p.memory_bytes);
  }
  const double span = std::max(std::log(most / least), 1e-9);
  const auto x = [&](double time) { return kLeft + std::log(time / least) / span * kWidth; };
  const auto y = [&](double bytes) { return kTop + kHeight * (1 - bytes / (1.05 * memory)); };
  std::string svg = svg_open(kLeft + kWidth + 30, kTop + kHeight + 50);
  for (const double part : {0.0, 0.25, 0.5, 0.75, 1.0}) {
    svg += fmt::format("<line class=\"grid\" x1=\"{}\" x2=\"{}\" y1=\"{:.1f}\" y2=\"{:.1f}\"/>\n", kLeft,
                       kLeft + kWidth, y(part * memory), y(part * memory));
    svg += svg_text(kLeft - 6, y(part * memory) + 4, "end", fmt::format("{:.0f} GB", part * memory / 1e9));
    const double time = least * std::exp(part * span);
    svg += svg_text(x(time), kTop + kHeight + 18, "middle", plan::seconds(time));
  }
  svg += svg_text(kLeft + kWidth / 2, kTop + kHeight + 40, "middle", "x: step time; y: memory of one device");
  for (const LandscapePoint& p : points)
    svg += fmt::format(
        "<circle cx=\"{:.1f}\" cy=\"{:.1f}\" r=\"{}\" fill=\"{}\" fill-opacity=\"{}\"><title>{}</title></circle>\n",
        x(p.time_s), y(p.memory_bytes),
        p.best    ? 7
        : p.front ? 4
                  : 2.5,
        svg_colour(p.best    ? 4
                   : p.front ? 1
                             : 0),
        p.best || p.front ? 1 : 0.45, svg_escaped(p.label));
  return svg + "</svg>\n";
}

}  // namespace esp::app
