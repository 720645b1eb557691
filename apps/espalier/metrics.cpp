// espalier metrics: prints the state of runs in Prometheus text format.
#include <cstdio>

#include <fmt/format.h>
#include <fmt/ranges.h>

#include "apps/espalier/command.h"
#include "apps/espalier/output_file.h"
#include "esp/base/error.h"
#include "esp/dash/find_runs.h"
#include "esp/obs/prometheus.h"

namespace esp::app {
namespace {

struct MetricsOptions {
  std::vector<std::string> folders;
  std::string out = "-";
};

int run_metrics(const MetricsOptions& options) {
  std::vector<obs::NamedRun> runs;
  std::vector<std::string> refused;
  for (const dash::FoundRun& run : dash::find_all_runs(options.folders, &refused)) runs.push_back({run.name, run.path});
  const std::string why = fmt::format("{}", fmt::join(refused, "\n"));
  if (runs.empty()) throw IoError(why);
  if (!why.empty()) fmt::print(stderr, "{}\n", why);
  write_file(options.out, obs::prometheus_text(runs));
  return 0;
}

}  // namespace

void define_metrics(const Arguments& app, SelectedCommand& chosen) {
  auto o = bind_options<MetricsOptions>(app, chosen, run_metrics);
  app.add_option("folders", o->folders, "run folders, or folders of runs").required().type_name("DIR");
  app.add_option("--out", o->out, "file for node_exporter's textfile collector, replaced atomically; - is stdout")
      .show_default()
      .type_name("FILE");
}

}  // namespace esp::app
