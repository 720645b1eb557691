// Figures as tables print them: "31.4 GB", "175B", "> 400 TFLOPS", "$5M", "30 days on 800 A100", "174,604,259,328".
#pragma once

#include <optional>
#include <string_view>

namespace esp::app {

struct Figure {
  double value = 0;           // in the base unit: bytes, seconds, FLOP/s; a plain count otherwise
  double rounding = 0;        // half a unit of the last printed digit
  std::string_view quantity;  // "bytes", "time" …; empty: a plain count
};

// The figure at the start of `text`. nullopt: `text` is words or a formula ("2Φ + 14Φ/N", "20 a parameter").
std::optional<Figure> parse_figure(std::string_view text);

// Whether `ours` is the printed figure, within its printed digits or the relative tolerance. False for two quantities.
bool agrees(const Figure& printed, const Figure& ours, double tolerance = 0);

}  // namespace esp::app
