// The subcommands of `espalier plan`, one per file.
#pragma once

#include "apps/espalier/command.h"

namespace esp::app {

void define_plan_estimate(CLI::App& app, Chosen& chosen);
void define_plan_search(CLI::App& app, Chosen& chosen);
void define_plan_simulate(CLI::App& app, Chosen& chosen);
void define_plan_calibrate(CLI::App& app, Chosen& chosen);
void define_plan_validate(CLI::App& app, Chosen& chosen);

}  // namespace esp::app
