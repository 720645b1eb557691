// espalier metrics: how runs stand now, as Prometheus reads it.
#include <filesystem>

#include <fmt/format.h>

#include "apps/espalier/command.h"
#include "apps/espalier/output_file.h"
#include "esp/base/error.h"
#include "esp/dash/run_folder.h"
#include "esp/obs/prometheus.h"

namespace esp::app {
namespace {

struct MetricsOptions {
  std::vector<std::string> folders;
  std::string out = "-";
};

int run_metrics(const MetricsOptions& options) {
  std::vector<obs::NamedRun> runs;
  for (const std::string& folder : options.folders) {
    if (std::filesystem::is_directory(folder) && !dash::is_run_folder(folder))
      throw IoError(fmt::format("{}: no run folder: neither run.toml nor metrics.jsonl is in it", folder));
    runs.push_back({std::filesystem::weakly_canonical(folder).filename().string(), folder});
  }
  write_file(options.out, obs::prometheus_text(runs));
  return 0;
}

}  // namespace

void define_metrics(const Arguments& app, Chosen& chosen) {
  auto o = keep<MetricsOptions>(app, chosen, run_metrics);
  app.add_option("folders", o->folders, "run folders").required().type_name("DIR");
  app.add_option("--out", o->out, "for node_exporter's textfile collector: written whole or not at all; - is stdout")
      .show_default()
      .type_name("FILE");
}

}  // namespace esp::app
