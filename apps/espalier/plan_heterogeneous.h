// plan search --also: searches one pipeline over devices of different types (heterogeneous pipeline).
#pragma once

#include <string>
#include <vector>

#include "apps/espalier/plan_inputs.h"

namespace esp::app {

// Each word "NAME|FILE:N" of `also` adds N devices of another cluster. Prints the stages, and writes JSON to the
// path `json` if it is not empty. UsageError: invalid input, or the model does not fit.
int run_heterogeneous_search(const PlanInputs& inputs, const std::vector<std::string>& also, const std::string& json);

}  // namespace esp::app
