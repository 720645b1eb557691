// Data for the dashboard from modules that it does not depend on: how algorithms distribute traffic, the planner's
// estimate of a run, and the planner page.
#pragma once

#include <string>

#include "esp/dash/http_request.h"
#include "esp/dash/run_folder.h"

namespace esp::app {

dash::DataProviders dash_data_providers();

// Answers requests of the planner page. /api/plan/choices returns the names of models and clusters. /api/plan searches
// (parameters: model, cluster, gpus, batch, seq, precision, space = "usual" | "whole") and returns the points, the best
// layout with an explanation, and the simulated step of that layout.
std::string dash_planner(const dash::Request& request);

}  // namespace esp::app
