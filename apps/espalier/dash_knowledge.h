// What the dashboard is told by rooms it does not know: how the table of algorithms shares bytes among peers, what the
// planner expects of a run, and the planner's page.
#pragma once

#include <string>

#include "esp/dash/http_request.h"
#include "esp/dash/run_folder.h"

namespace esp::app {

dash::Knowledge dash_knowledge();

// /api/plan/choices: models and clusters by name. /api/plan: a search (model, cluster, gpus, batch, seq, precision,
// space = "usual" | "whole") with its points, the winner, why, and its simulated step.
std::string dash_planner(const dash::Request& request);

}  // namespace esp::app
