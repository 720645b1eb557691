#include "apps/espalier/lab_findings.h"

#include <algorithm>
#include <cmath>
#include <optional>
#include <sstream>

#include <fmt/format.h>
#include <nlohmann/json.hpp>

#include "apps/espalier/figure.h"
#include "apps/espalier/text_table.h"

namespace esp::app {
namespace {

struct MarkRow {
  std::string_view name, result;
};
constexpr MarkRow kMarks[] = {
    {"shown", ""}, {"agrees", "✓"}, {"convention", "✓ convention"}, {"differs", "≠"}, {"wrong", "WRONG"}};

const MarkRow& row_of(Mark mark) {
  return kMarks[static_cast<size_t>(mark)];
}

// Formats integers in full with thousands separators, other numbers with six digits.
std::string number(double value, std::string_view unit) {
  std::string text;
  if (value == std::floor(value) && std::abs(value) < 1e15) {
    text = fmt::format("{:.0f}", value);
    const size_t first = value < 0 ? 1 : 0;
    if (text.size() - first > 4)
      for (size_t at = text.size(); at > first + 3; at -= 3) text.insert(at - 3, ",");
  } else {
    text = fmt::format("{:.6g}", value);
  }
  return unit.empty() ? text : fmt::format("{} {}", text, unit);
}

}  // namespace

const char* const kMarkLegend =
    "✓: the figures are equal (± the tolerance). ✓ convention: equal if counted as the lecture does (see the note). "
    "≠: differs from the lecture's figure (see the note). No mark: not compared.";

std::string_view name_of(Mark mark) {
  return row_of(mark).name;
}

std::string result_text(Mark mark, double tolerance) {
  constexpr double kNegligible = 1e-4;  // a smaller tolerance only allows for rounding of sums and is not printed
  const std::string_view result = row_of(mark).result;
  if (mark != Mark::agrees || tolerance < kNegligible) return std::string(result);
  return fmt::format("{} ± {:.2g} %", result, 100 * tolerance);
}

Mark Finding::mark() const {
  if (check == Check::fails) return Mark::wrong;
  const std::optional<Figure> printed = parse_figure(lecture);
  if (!printed || (modelled.empty() && measured.empty())) return check == Check::none ? Mark::none : Mark::agrees;
  const auto is_printed = [&](const std::string& text) {
    const std::optional<Figure> ours = parse_figure(text);
    return text.empty() || (ours && figures_match(*printed, *ours, tolerance));
  };
  if (is_printed(modelled) && is_printed(measured)) return Mark::agrees;
  return !convention.empty() && !note.empty() && is_printed(convention) ? Mark::convention : Mark::differs;
}

Finding& Findings::show(std::string what, std::string lecture, std::string modelled, std::string measured) {
  Finding& row = all_.emplace_back();
  row.what = std::move(what), row.lecture = std::move(lecture);
  row.modelled = std::move(modelled), row.measured = std::move(measured);
  return row;
}

Finding& Findings::holds(std::string what, std::string lecture, std::string modelled, std::string measured,
                         bool true_here) {
  Finding& row = show(std::move(what), std::move(lecture), std::move(modelled), std::move(measured));
  row.check = true_here ? Finding::Check::holds : Finding::Check::fails;
  return row;
}

Finding& Findings::exact(std::string what, std::string lecture, double modelled, double measured,
                         std::string_view unit) {
  return within(std::move(what), std::move(lecture), modelled, measured, 0, unit);
}

Finding& Findings::same(std::string what, std::string lecture, std::string modelled, std::string measured) {
  const bool equal = modelled == measured;
  return holds(std::move(what), std::move(lecture), std::move(modelled), std::move(measured), equal);
}

Finding& Findings::within(std::string what, std::string lecture, double modelled, double measured, double part,
                          std::string_view unit) {
  Finding& row = holds(std::move(what), std::move(lecture), number(modelled, unit), number(measured, unit),
                       std::abs(measured - modelled) <= part * std::abs(modelled));
  row.tolerance = part;
  return row;
}

bool Findings::all_hold() const {
  return std::none_of(all_.begin(), all_.end(), [](const Finding& one) { return one.mark() == Mark::wrong; });
}

// Notes stand after the last column and are not wrapped.
std::string Findings::text() const {
  std::vector<Cells> rows;
  for (const Finding& one : all_)
    rows.push_back({one.what, one.lecture, one.modelled, one.measured, result_text(one.mark(), one.tolerance)});
  const Cells head = {"figure", "lecture", "modelled", "measured here", "result"};
  std::istringstream lines(text_table(head, rows));
  std::string text, line;
  std::getline(lines, line);
  text = line + "\n";
  for (const Finding& one : all_) {
    std::getline(lines, line);
    text += line + (one.note.empty() ? "" : "  " + one.note) + "\n";
  }
  return text + kMarkLegend + "\n";
}

Json Findings::json() const {
  Json rows = Json::array();
  for (const Finding& one : all_)
    rows.push_back({{"what", one.what},
                    {"lecture", one.lecture},
                    {"modelled", one.modelled},
                    {"measured", one.measured},
                    {"held", name_of(one.mark())},
                    {"result", result_text(one.mark(), one.tolerance)},
                    {"tolerance", one.tolerance},
                    {"convention", one.convention},
                    {"note", one.note}});
  return rows;
}

}  // namespace esp::app
