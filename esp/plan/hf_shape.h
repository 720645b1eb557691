// Model sizes from a Hugging Face config.json, for planning; nothing is built or loaded. One row per model_type, so
// that the parameter count is exact; an unknown model_type or architecture is rejected. Assumptions are listed.
#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "esp/base/json.h"
#include "esp/plan/shape.h"

namespace esp::plan {

// UsageError for missing, invalid or unknown fields.
ModelShape shape_from_hf(const Json& config, const std::string& name, std::vector<std::string>& assumed);

std::vector<std::string_view> known_hf_types();

}  // namespace esp::plan
