// espalier plan validate: compares predictions with rows of measured results.
#include <fmt/format.h>
#include <nlohmann/json.hpp>

#include "apps/espalier/output_file.h"
#include "apps/espalier/plan.h"
#include "apps/espalier/text_table.h"
#include "esp/base/error.h"
#include "esp/obs/file.h"
#include "esp/plan/validate.h"

namespace esp::app {
namespace {

constexpr size_t kMaxTableBytes = size_t{256} << 20;

struct ValidateOptions {
  std::string rows, json, cluster;
  int calibrate = 0;
  bool brief = false;
};

std::string number(const std::optional<double>& value, const char* format = "{:.4g}") {
  return value ? fmt::format(fmt::runtime(format), *value) : "";
}

std::string percent(const std::optional<double>& value, const char* format = "{:+.1f} %") {
  return value ? fmt::format(fmt::runtime(format), 100 * *value) : "";
}

std::string rows_table(const plan::Validation& all) {
  std::vector<Cells> rows;
  for (const plan::RowResult& r : all.rows)
    rows.push_back({r.id, number(r.predicted_s), number(r.measured_s), percent(r.error()),
                    r.low_s ? fmt::format("{:.4g} to {:.4g}", *r.low_s, *r.high_s) : "", number(r.predicted_gb),
                    number(r.measured_gb), r.fits ? "fits" : "out of memory", r.fitted_on ? "used to fit" : ""});
  return text_table(
      {"row", "predicted s", "measured s", "error", "80 % interval", "predicted GB", "measured GB", "verdict", ""},
      rows);
}

std::string sources_table(const plan::Validation& all) {
  std::vector<Cells> rows;
  for (const plan::SourceResult& s : all.sources) {
    const auto of_errors = [&](double value) { return s.n > 0 ? fmt::format("{:.1f} %", 100 * value) : ""; };
    rows.push_back({s.source, std::to_string(s.n), of_errors(s.mean), of_errors(s.median), of_errors(s.p90),
                    of_errors(s.worst), number(s.tau, "{:.2f}"), percent(s.regret, "{:.1f} %"),
                    percent(s.memory_mean, "{:.1f} %"), percent(s.inside_interval, "{:.0f} %"),
                    s.oom_right ? fmt::format("{:.0f} of {}", *s.oom_right * s.oom, s.oom) : "",
                    s.rejected > 0 ? std::to_string(s.rejected) : "", fmt::format("{:.3f}", s.scale)});
  }
  return text_table({"source", "rows", "mean error", "median error", "p90 error", "worst error", "Kendall tau",
                     "regret", "memory error", "in interval", "out of memory", "wrongly rejected", "scale"},
                    rows);
}

int run_plan_validate(const ValidateOptions& o) {
  if (o.calibrate < 0 || o.calibrate > 1000)
    throw UsageError(
        fmt::format("--calibrate: got {}; expected 0 (no calibration) to 1000 rows per source", o.calibrate));
  plan::Catalog catalog;
  if (!o.cluster.empty()) catalog.add(obs::read_whole_file(o.cluster, size_t{1} << 20), o.cluster);
  const auto rows = plan::read_rows(obs::read_whole_file(o.rows, kMaxTableBytes), o.rows, catalog);
  const plan::Validation all = plan::validate(rows, o.calibrate);
  if (!o.json.empty()) write_file(o.json, to_json(all).dump(1, ' ', false, Json::error_handler_t::replace) + "\n");
  if (o.json == "-") return static_cast<int>(ExitCode::done);
  if (!o.brief) fmt::print("{}\n", rows_table(all));
  fmt::print("{}", sources_table(all));
  return static_cast<int>(ExitCode::done);
}

}  // namespace

void define_plan_validate(const Arguments& app, SelectedCommand& chosen) {
  auto o = bind_options<ValidateOptions>(app, chosen, run_plan_validate);
  app.add_option("--rows", o->rows, "CSV table of measured results").required().type_name("FILE.csv");
  app.add_option("--calibrate", o->calibrate, "rows per source from which its time scale factor is fitted [0]")
      .type_name("K");
  app.add_option("--catalog", o->cluster, "file with more devices and links").type_name("FILE.toml");
  app.add_flag("--brief", o->brief, "print only the summary per source");
  app.add_option("--json", o->json, "write rows and sources as JSON; - is stdout").type_name("FILE");
}

}  // namespace esp::app
