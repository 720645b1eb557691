// plan search --also: one pipeline over processors of several kinds.
#pragma once

#include <string>
#include <vector>

#include "apps/espalier/plan_inputs.h"

namespace esp::app {

// `also`: "NAME|FILE:N" each, so many processors of another cluster beside those of the inputs. Prints the stages;
// `json` as everywhere. UsageError: what cannot be read, or does not fit.
int run_mixed_search(const PlanInputs& inputs, const std::vector<std::string>& also, const std::string& json);

}  // namespace esp::app
