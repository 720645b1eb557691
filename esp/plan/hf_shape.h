// Model sizes from a Hugging Face config.json, for planning; no model is built or loaded. Every supported model_type
// has its own row, so that the parameter count is exact. An unknown model_type or architecture is an error. Assumptions
// are listed.
#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "esp/base/json.h"
#include "esp/plan/shape.h"

namespace esp::plan {

// Reads the sizes; `assumed` receives the assumptions. UsageError for a missing, invalid or unknown field.
ModelShape shape_from_hf(const Json& config, const std::string& name, std::vector<std::string>& assumed);

std::vector<std::string_view> known_hf_types();

}  // namespace esp::plan
