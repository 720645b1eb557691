#include "apps/espalier/figure.h"

#include <algorithm>
#include <cctype>
#include <cmath>
#include <string>

namespace esp::app {
namespace {

struct Unit {
  std::string_view name, quantity;
  double scale;
};

// A space precedes these units, as in "4096 B". The suffixes below follow the digits directly, as in "175B".
constexpr Unit kUnits[] = {
    {"B", "bytes", 1},
    {"KB", "bytes", 1e3},
    {"MB", "bytes", 1e6},
    {"GB", "bytes", 1e9},
    {"TB", "bytes", 1e12},
    {"KiB", "bytes", 0x1p10},
    {"MiB", "bytes", 0x1p20},
    {"GiB", "bytes", 0x1p30},
    {"GB/s", "bytes/s", 1e9},
    {"TB/s", "bytes/s", 1e12},
    {"Gb/s", "bytes/s", 1e9 / 8},
    {"GFLOP/s", "FLOP/s", 1e9},
    {"TFLOP/s", "FLOP/s", 1e12},
    {"TFLOPS", "FLOP/s", 1e12},
    {"PFLOP/s", "FLOP/s", 1e15},
    {"PFLOPS", "FLOP/s", 1e15},
    {"µs", "time", 1e-6},
    {"ms", "time", 1e-3},
    {"s", "time", 1},
    {"h", "time", 3600},
    {"days", "time", 86400},
    {"years", "time", 365 * 86400.0},
    {"%", "share", 0.01},
    {"M$", "dollars", 1e6},
    {"million", "", 1e6},
    {"billion", "", 1e9},
    {"tokens/s", "tokens/s", 1},
    {"units", "units", 1},
    {"×", "ratio", 1},
};
constexpr Unit kSuffixes[] = {{"K", "", 1e3}, {"M", "", 1e6}, {"B", "", 1e9}, {"T", "", 1e12}};

std::string_view without_spaces(std::string_view text) {
  while (text.starts_with(' ')) text.remove_prefix(1);
  return text;
}

// Parses a number such as "1,234.5e-6" at the start of `text` and removes it. `decimals` is the position of its last
// digit.
std::optional<double> take_number(std::string_view& text, int& decimals) {
  std::string digits;
  size_t at = 0;
  bool point = false;
  const auto digit_at = [&](size_t i) { return i < text.size() && std::isdigit(static_cast<unsigned char>(text[i])); };
  for (; at < text.size(); ++at) {
    if (digit_at(at)) {
      decimals += point ? 1 : 0;
    } else if (text[at] == ',' && !point && digit_at(at + 1) && digit_at(at + 2) && digit_at(at + 3)) {
      continue;
    } else if (text[at] == '.' && !point && digit_at(at + 1)) {
      point = true;
    } else {
      break;
    }
    digits += text[at];
  }
  if (digits.empty()) return std::nullopt;
  if (at + 2 < text.size() && text[at] == 'e' && (text[at + 1] == '-' || text[at + 1] == '+') && digit_at(at + 2)) {
    size_t end = at + 2;
    while (digit_at(end)) ++end;
    const std::string exponent(text.substr(at, end - at));
    decimals -= std::stoi(exponent.substr(1));
    digits += exponent;
    at = end;
  }
  text.remove_prefix(at);
  return std::stod(digits);
}

template <size_t N>
const Unit* take_unit(std::string_view& text, const Unit (&units)[N]) {
  const size_t end = std::min(text.find_first_of(" ,()"), text.size());
  for (const Unit& one : units)
    if (text.substr(0, end) == one.name) {
      text.remove_prefix(end);
      return &one;
    }
  return nullptr;
}

}  // namespace

std::optional<Figure> parse_figure(std::string_view text) {
  text = without_spaces(text);
  while (text.starts_with('~') || text.starts_with('>')) text = without_spaces(text.substr(1));
  const bool dollars = text.starts_with('$');
  if (dollars) text.remove_prefix(1);
  int decimals = 0;
  const std::optional<double> number = take_number(text, decimals);
  if (!number) return std::nullopt;
  Figure figure{*number, 0.5 * std::pow(10, -decimals), dollars ? "dollars" : ""};
  const Unit* unit = take_unit(text, kSuffixes);
  const bool spaced = text.starts_with(' ');
  std::string_view rest = without_spaces(text);
  if (!unit) unit = take_unit(rest, kUnits);
  if (!unit && !rest.empty() && !(spaced && rest.starts_with('('))) return std::nullopt;
  if (unit) {
    figure.value *= unit->scale;
    figure.rounding *= unit->scale;
    if (!unit->quantity.empty()) figure.quantity = unit->quantity;
  }
  return figure;
}

bool figures_match(const Figure& printed, const Figure& ours, double tolerance) {
  constexpr double kOfRounding = 1 + 1e-9;  // tolerance for values at the edge of the printed digits
  return printed.quantity == ours.quantity &&
         std::abs(ours.value - printed.value) <= kOfRounding * (printed.rounding + tolerance * std::abs(printed.value));
}

}  // namespace esp::app
