// Fuzz target: arbitrary bytes as a table of results. They must give an error, or rows that can all be predicted and
// summarised.
#include <cmath>
#include <string_view>

#include <nlohmann/json.hpp>

#include "esp/base/error.h"
#include "esp/plan/validate.h"

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  if (size > 16384) return 0;
  try {
    const auto rows =
        esp::plan::read_rows({reinterpret_cast<const char*>(data), size}, "fuzz.csv", esp::plan::built_in_catalog());
    const esp::plan::Validation all = esp::plan::validate(rows, 1);
    for (const esp::plan::RowResult& row : all.rows)
      if (row.predicted_s && !(std::isfinite(*row.predicted_s) && *row.predicted_s > 0)) __builtin_trap();
    esp::plan::to_json(all).dump(-1, ' ', false, esp::Json::error_handler_t::replace);
  } catch (const esp::UsageError&) {
  } catch (const esp::IoError&) {
  }
  return 0;
}
