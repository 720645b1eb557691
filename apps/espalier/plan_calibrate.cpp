#include "apps/espalier/plan.h"
#include "esp/base/error.h"

namespace esp::app {

void define_plan_calibrate(CLI::App& app, Chosen& chosen) {
  app.callback([&chosen] { chosen.run = []() -> int { throw UsageError("plan calibrate is being built"); }; });
}

}  // namespace esp::app
