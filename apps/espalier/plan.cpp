// espalier plan: estimates the cost of a run and searches for the best layout.
#include "apps/espalier/plan.h"

namespace esp::app {
namespace {

constexpr Command kPlans[] = {
    {"estimate", "estimate memory, traffic and time of one policy on one cluster", define_plan_estimate},
    {"search", "search for the best policy of a model on a cluster", define_plan_search},
    {"simulate", "simulate a step: timeline, contention, stragglers, failures", define_plan_simulate},
    {"calibrate", "measure this machine and write its cluster file", define_plan_calibrate},
    {"validate", "compare predictions with measured rows", define_plan_validate},
};

}  // namespace

void define_plan(const Arguments& app, SelectedCommand& chosen) {
  define_commands(app, kPlans, chosen);
  app.require_subcommand(0, 1);
}

}  // namespace esp::app
