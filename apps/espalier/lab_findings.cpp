#include "apps/espalier/lab_findings.h"

#include <algorithm>
#include <cmath>

#include <fmt/format.h>
#include <nlohmann/json.hpp>

#include "apps/espalier/text_table.h"

namespace esp::app {
namespace {

// Whole numbers in full with their thousands apart, others to six digits.
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

std::string mark(Finding::Held held) {
  return held == Finding::Held::exact ? "✓" : held == Finding::Held::wrong ? "WRONG" : "";
}

}  // namespace

std::string_view name_of(Finding::Held held) {
  return held == Finding::Held::exact ? "exact" : held == Finding::Held::wrong ? "wrong" : "shown";
}

void Findings::show(std::string what, std::string lecture, std::string modelled, std::string measured) {
  all_.push_back({std::move(what), std::move(lecture), std::move(modelled), std::move(measured), Finding::Held::shown});
}

void Findings::holds(std::string what, std::string lecture, std::string modelled, std::string measured,
                     bool true_here) {
  show(std::move(what), std::move(lecture), std::move(modelled), std::move(measured));
  all_.back().held = true_here ? Finding::Held::exact : Finding::Held::wrong;
}

void Findings::exact(std::string what, std::string lecture, double modelled, double measured, std::string_view unit) {
  holds(std::move(what), std::move(lecture), number(modelled, unit), number(measured, unit), modelled == measured);
}

void Findings::same(std::string what, std::string lecture, std::string modelled, std::string measured) {
  const bool equal = modelled == measured;
  holds(std::move(what), std::move(lecture), std::move(modelled), std::move(measured), equal);
}

void Findings::within(std::string what, std::string lecture, double modelled, double measured, double part,
                      std::string_view unit) {
  holds(std::move(what), std::move(lecture), number(modelled, unit), number(measured, unit),
        std::abs(measured - modelled) <= part * std::abs(modelled));
}

bool Findings::all_hold() const {
  return std::none_of(all_.begin(), all_.end(), [](const Finding& one) { return one.held == Finding::Held::wrong; });
}

std::string Findings::text() const {
  std::vector<Cells> rows;
  for (const Finding& one : all_) rows.push_back({one.what, one.lecture, one.modelled, one.measured, mark(one.held)});
  return text_table({"", "lecture", "modelled", "measured here", "asserted"}, rows);
}

Json Findings::json() const {
  Json rows = Json::array();
  for (const Finding& one : all_)
    rows.push_back({{"what", one.what},
                    {"lecture", one.lecture},
                    {"modelled", one.modelled},
                    {"measured", one.measured},
                    {"held", name_of(one.held)}});
  return rows;
}

}  // namespace esp::app
