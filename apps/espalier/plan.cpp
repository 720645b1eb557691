// espalier plan: what a run will cost, and which layout is best.
#include "apps/espalier/plan.h"

namespace esp::app {
namespace {

constexpr Command kPlans[] = {
    {"estimate", "memory, traffic and time of one policy on one cluster", define_plan_estimate},
    {"search", "the best policy for a model on a cluster", define_plan_search},
    {"simulate", "a step event by event: timeline, contention, stragglers, failures", define_plan_simulate},
    {"calibrate", "measure this machine and write its cluster file", define_plan_calibrate},
    {"validate", "predictions against measured rows, error by error", define_plan_validate},
};

}  // namespace

void define_plan(const Arguments& app, Chosen& chosen) {
  define_commands(app, kPlans, chosen);
  app.require_subcommand(0, 1);
}

}  // namespace esp::app
