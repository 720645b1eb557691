// Subcommands of `espalier plan`, one per file.
#pragma once

#include "apps/espalier/command.h"

namespace esp::app {

void define_plan_estimate(const Arguments& app, SelectedCommand& chosen);
void define_plan_search(const Arguments& app, SelectedCommand& chosen);
void define_plan_simulate(const Arguments& app, SelectedCommand& chosen);
void define_plan_calibrate(const Arguments& app, SelectedCommand& chosen);
void define_plan_validate(const Arguments& app, SelectedCommand& chosen);

}  // namespace esp::app
