// Parses figures as printed in tables: "31.4 GB", "175B", "> 400 TFLOPS", "$5M", "30 days on 800 A100",
// "174,604,259,328".
#pragma once

#include <optional>
#include <string_view>

namespace esp::app {

struct Figure {
  double value = 0;           // in the base unit: bytes, seconds, FLOP/s; a plain count otherwise
  double rounding = 0;        // half a unit of the last printed digit
  std::string_view quantity;  // "bytes", "time" …; empty: a plain count
};

// Parses the figure at the start of `text`. nullopt: not a plain figure, for example a formula ("2Φ + 14Φ/N") or a
// ratio
// ("20 a parameter").
std::optional<Figure> parse_figure(std::string_view text);

// Whether the computed figure equals the printed one, within its printed digits or within the relative tolerance. False
// if their quantities differ.
bool figures_match(const Figure& printed, const Figure& ours, double tolerance = 0);

}  // namespace esp::app
