// The sizes in a Hugging Face config.json, for planning: whatever names they go by (gpt2, llama, mistral, qwen,
// mixtral, deepseek, bert, opt, falcon, gemma …), nothing of it built or loaded. What the file does not say is assumed
// and said.
#pragma once

#include <string>
#include <vector>

#include "esp/base/json.h"
#include "esp/plan/shape.h"

namespace esp::plan {

// UsageError: what is missing, or absurd.
Shape shape_from_hf(const Json& config, const std::string& name, std::vector<std::string>& assumed);

}  // namespace esp::plan
