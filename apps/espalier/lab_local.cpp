// espalier lab local: local SGD by real ranks, compared with parallel SGD: the bytes that infrequent averages save, and
// their effect on the loss.
#include <fmt/format.h>
#include <nlohmann/json.hpp>

#include "apps/espalier/command.h"
#include "apps/espalier/lab_divergent.h"
#include "apps/espalier/lab_output.h"
#include "esp/base/error.h"

namespace esp::app {
namespace {

struct LocalLabOptions {
  DivergentLabOptions divergent;
  std::vector<int64_t> periods = {1, 2, 4, 8, 16, 32};
};

DivergentCase local_case(const std::string& name, const std::string& method, int64_t period) {
  DivergentCase spec{name, {}, -1};
  spec.sync.method = method;
  spec.sync.tau = spec.sync.period = period;
  return spec;
}

std::vector<DivergentCase> cases_of(const LocalLabOptions& o) {
  std::vector<DivergentCase> all = {local_case("parallel SGD", "allreduce", 1)};
  for (const int64_t tau : o.periods) all.push_back(local_case(fmt::format("local, τ = {}", tau), "local", tau));
  DivergentCase post = local_case("post-local, τ = 8 after half", "local", 8);
  post.sync.local_after = o.divergent.steps / 2;
  all.push_back(post);
  DivergentCase fedavg =
      local_case(fmt::format("FedAvg, {} of {}, τ = 8", o.divergent.nproc / 2, o.divergent.nproc), "local", 8);
  fedavg.sync.sample = o.divergent.nproc / 2;
  all.push_back(fedavg);
  DivergentCase outer = local_case("DiLoCo, H = 32", "diloco", 32);
  all.push_back(outer);
  return all;
}

// Sets the expected bytes of each run. Every average sends the same number of bytes, which the first run determines.
void expect_rounds(std::vector<DivergentRun>& runs, int64_t steps) {
  const DivergentRun* first = nullptr;
  for (DivergentRun& run : runs) {
    if (run.spec.sync.method != "local" || run.spec.sync.sample > 0 || run.spec.sync.local_after > 0) continue;
    if (!first) first = &run;
    const double of_one = static_cast<double>(first->bytes) / static_cast<double>(steps / first->spec.sync.tau);
    run.spec.formula_bytes = of_one * static_cast<double>(steps / run.spec.sync.tau);
  }
}

Findings findings_of(const std::vector<DivergentRun>& runs) {
  Findings findings;
  for (const DivergentRun& run : runs) {
    if (run.spec.formula_bytes >= 0)
      findings.exact(fmt::format("{}: bytes of a run", run.spec.name), "1/τ of parallel SGD's", run.spec.formula_bytes,
                     static_cast<double>(run.bytes), "B");
    if (run.spec.name == "local, τ = 1")
      findings.within("local, τ = 1: excess loss equals that of parallel SGD", "", runs[0].excess, run.excess, 1e-9);
    else
      findings.show(fmt::format("{}: final excess loss", run.spec.name), "", "", fmt::format("{:.1e}", run.excess));
  }
  return findings;
}

int run_lab_local(const LocalLabOptions& o) {
  check(o.divergent);
  for (const int64_t tau : o.periods)
    if (tau < 1 || tau > o.divergent.steps)
      throw UsageError(fmt::format("--tau: got {}; expected 1 to {}, the number of steps", tau, o.divergent.steps));
  const auto problem = make_problem(o.divergent);
  std::vector<DivergentRun> runs;
  for (const DivergentCase& spec : cases_of(o)) runs.push_back(run_divergent(o.divergent, *problem, spec));
  expect_rounds(runs, o.divergent.steps);
  std::vector<Cells> rows;
  for (const DivergentRun& run : runs) rows.push_back(table_row(o.divergent, run));
  const std::string text = fmt::format(
      "{}\n"
      "\n"
      "{}Bytes are those of the busiest rank, from its communicator. Formula: the bytes of the "
      "first period, divided by the ratio\n"
      "of the periods. Replicas diverge between averages: more with a longer period, and more with "
      "heterogeneous nodes. f(x̄) is the\n"
      "loss of the mean of the replicas.\n",
      settings_text(o.divergent, *problem), text_table(table_head(), rows));
  return finish_lab({o.divergent.json, o.divergent.out}, "local", text, report_json(o.divergent, *problem, runs),
                    draw_svg(fmt::format("Local steps, {} ranks", o.divergent.nproc), "steps",
                             "squared error per coordinate", error_series(runs), Axes::plain),
                    findings_of(runs));
}

}  // namespace

void define_lab_local(const Arguments& app, SelectedCommand& chosen) {
  auto o = bind_options<LocalLabOptions>(app, chosen, run_lab_local);
  add_divergent_options(app, o->divergent);
  app.add_option("--tau", o->periods, "steps between averages [1,2,4,8,16,32]").delimiter(',').type_name("N");
}

}  // namespace esp::app
