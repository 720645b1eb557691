#include "apps/espalier/plan_landscape.h"

#include <algorithm>
#include <cmath>
#include <set>

#include <fmt/format.h>

#include "apps/espalier/lab_svg.h"
#include "esp/plan/report.h"
#include "esp/plan/search/ties.h"

namespace esp::app {
namespace {

constexpr double kWidth = 900, kHeight = 520, kLeft = 80, kRight = 30, kTop = 30, kBottom = 60;
constexpr double kSlowest = 8;  // a policy slower than this many times the best step is drawn at the edge

struct Frame {
  double least_s, most_s, most_bytes;
  // The time axis is logarithmic: readers compare ratios.
  double x(double time_s) const {
    const double part = std::log(std::clamp(time_s, least_s, most_s) / least_s) / std::log(most_s / least_s);
    return kLeft + part * (kWidth - kLeft - kRight);
  }
  double y(double bytes) const { return kHeight - kBottom - bytes / most_bytes * (kHeight - kTop - kBottom); }
};

Frame frame_of(const plan::SearchResult& result, double capacity) {
  Frame frame{plan::kNever, 0, capacity};
  for (const auto* list : {&result.seen, &result.top, &result.front})
    for (const plan::RankedChoice& one : *list) {
      frame.least_s = std::min(frame.least_s, one.time_s);
      frame.most_s = std::max(frame.most_s, one.time_s);
      frame.most_bytes = std::max(frame.most_bytes, one.memory_bytes);
    }
  frame.most_s = std::clamp(frame.most_s, 1.05 * frame.least_s, kSlowest * frame.least_s);
  frame.least_s *= 0.98;
  return frame;
}

std::string point(const plan::PlanProblem& problem, const Frame& frame, const plan::RankedChoice& one,
                  const char* colour, double radius) {
  return fmt::format(
      "<circle class=\"p\" cx=\"{:.1f}\" cy=\"{:.1f}\" r=\"{}\" fill=\"{}\"><title>{}\n{}, {}</title></circle>\n",
      frame.x(one.time_s), frame.y(one.memory_bytes), radius, colour, svg_escaped(problem.text_of(one.choice)),
      plan::seconds(one.time_s), plan::gigabytes(one.memory_bytes));
}

std::string axes(const Frame& frame, double capacity) {
  std::string svg;
  for (double by = 1; by <= frame.most_s / frame.least_s; by *= std::sqrt(2.0)) {
    const double x = frame.x(frame.least_s * by);
    svg += fmt::format("<line class=\"grid\" x1=\"{0:.1f}\" x2=\"{0:.1f}\" y1=\"{1}\" y2=\"{2}\"/>\n", x, kTop,
                       kHeight - kBottom);
    svg += svg_text(x, kHeight - kBottom + 18, "middle", plan::seconds(frame.least_s * by));
  }
  for (int i = 0; i <= 4; ++i) {
    const double bytes = frame.most_bytes * i / 4, y = frame.y(bytes);
    svg += fmt::format("<line class=\"grid\" x1=\"{1}\" x2=\"{2}\" y1=\"{0:.1f}\" y2=\"{0:.1f}\"/>\n", y, kLeft,
                       kWidth - kRight);
    svg += svg_text(kLeft - 8, y + 4, "end", plan::gigabytes(bytes));
  }
  if (capacity > 0) svg += svg_text(kWidth - kRight, frame.y(capacity) - 6, "end", "capacity");
  svg += svg_text(8, kTop - 12, "start", "memory of the fullest device");
  svg += svg_text((kLeft + kWidth) / 2, kHeight - 14, "middle", "step time");
  return svg;
}

// Legend of the colours. A colour stands for a number of pipeline stages; only numbers that occur are listed.
std::string legend(const plan::PlanProblem& problem, const plan::SearchResult& result) {
  const auto pp = static_cast<size_t>(plan::PlanAxis::pp);
  std::set<size_t> met;
  for (const plan::RankedChoice& one : result.seen) met.insert(one.choice[pp]);
  std::string svg;
  double y = kTop + 24;
  for (const size_t value : met) {
    svg += fmt::format("<circle cx=\"{}\" cy=\"{}\" r=\"5\" fill=\"{}\"/>\n", kWidth - kRight - 60, y - 4,
                       svg_colour(value));
    svg += svg_text(kWidth - kRight - 50, y, "start", "pp " + problem.axes()[pp].values[value]);
    y += 18;
  }
  return svg;
}

}  // namespace

std::string landscape_svg(const plan::PlanProblem& problem, const plan::SearchResult& result) {
  std::string svg = svg_open(kWidth, kHeight);
  svg += "<style>.p{opacity:.55}.p:hover{opacity:1;stroke:#888;stroke-width:6}</style>\n";
  if (!result.found()) return svg + svg_text(kWidth / 2, kHeight / 2, "middle", "no policy fits") + "</svg>\n";
  const double capacity = problem.capacity(result.best().choice);
  const Frame frame = frame_of(result, capacity);
  svg += axes(frame, capacity);
  const auto pp = static_cast<size_t>(plan::PlanAxis::pp);
  for (const plan::RankedChoice& one : result.seen) svg += point(problem, frame, one, svg_colour(one.choice[pp]), 2.5);
  std::string line;
  for (const plan::RankedChoice& one : result.front)
    line += fmt::format("{:.1f},{:.1f} ", frame.x(one.time_s), frame.y(one.memory_bytes));
  if (!line.empty()) svg += fmt::format("<polyline class=\"mark\" fill=\"none\" points=\"{}\"/>\n", line);
  for (const plan::RankedChoice& one : result.front) svg += point(problem, frame, one, "#888", 4);
  svg += point(problem, frame, result.best(), "#d6436e", 7);
  svg += legend(problem, result);
  return svg + "</svg>\n";
}

std::string landscape_page(const plan::PlanProblem& problem, const plan::SearchResult& result,
                           const std::string& explanation) {
  std::string page = fmt::format(
      "<!doctype html><html lang=\"en\"><head><meta charset=\"utf-8\"><title>{0}: search</title>\n"
      "<style>body{{font:15px sans-serif;max-width:960px;margin:2em auto;padding:0 "
      "1em;color:#222;background:#fff}}svg{{max-width:100%;height:auto}}table{{border-collapse:collapse}}td,th{{"
      "padding:.2em "
      ".8em;text-align:left}}tr:nth-child(even){{background:#8881}}pre{{overflow-x:auto}}@media(prefers-color-scheme:"
      "dark){{body{{color:#ddd;background:#111}}}}</style></head><body>\n"
      "<h1>{0}</h1>\n"
      "<p>{1}: {2} considered, {3} too large, {4} estimated in {5:.2f} s. Each point is an "
      "estimated policy; its colour is the number of pipeline stages. The line is the Pareto front "
      "of time and memory, the large point the best policy by {6}.</p>\n",
      svg_escaped(problem.shape().name), result.method, result.counts.considered, result.counts.too_large,
      result.counts.evaluated, result.elapsed_s, problem.objective().name);
  page += landscape_svg(problem, result);
  page += "<h2>Best policies</h2>\n<table><tr><th>step</th><th>memory</th><th>policy</th><th></th></tr>\n";
  const std::vector<bool> ties = result.found() ? plan::find_ties(problem, result) : std::vector<bool>();
  for (size_t i = 0; i < result.top.size(); ++i)
    page += fmt::format("<tr><td>{}</td><td>{}</td><td>{}</td><td>{}</td></tr>\n", plan::seconds(result.top[i].time_s),
                        plan::gigabytes(result.top[i].memory_bytes), svg_escaped(problem.text_of(result.top[i].choice)),
                        ties[i] ? "tie" : "");
  page += "</table>\n";
  if (result.found()) page += "<p>" + svg_escaped(plan::describe_ties(problem, result)) + "</p>\n";
  if (!explanation.empty()) page += "<h2>Explanation</h2>\n<pre>" + svg_escaped(explanation) + "</pre>\n";
  return page + "</body></html>\n";
}

}  // namespace esp::app
