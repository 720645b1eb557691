// Fuzz target: arbitrary bytes as a config.json. They must give an error, or sizes with finite and consistent counts.
#include <cmath>
#include <string_view>
#include <vector>

#include <nlohmann/json.hpp>

#include "esp/base/error.h"
#include "esp/plan/hf_shape.h"

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  std::vector<std::string> assumed;
  try {
    const esp::Json json = esp::parse_json({reinterpret_cast<const char*>(data), size}, "fuzz");
    const esp::plan::ModelShape s = esp::plan::shape_from_hf(json, "fuzz", assumed);
    if (!std::isfinite(s.parameters()) || s.parameters() <= 0 || s.active_parameters() > 1.0001 * s.parameters())
      __builtin_trap();
  } catch (const esp::Error&) {
  }
  return 0;
}
