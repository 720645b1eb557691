// espalier lab local: local SGD by real ranks compared with parallel SGD: savings and cost of infrequent averages.
#include <fmt/format.h>
#include <nlohmann/json.hpp>

#include "apps/espalier/command.h"
#include "apps/espalier/lab_divergent.h"
#include "apps/espalier/lab_output.h"
#include "esp/base/error.h"

namespace esp::app {
namespace {

struct LocalLab {
  DivergentLab copies;
  std::vector<int64_t> periods = {1, 2, 4, 8, 16, 32};
};

CopiesCase local_case(const std::string& name, const std::string& method, int64_t period) {
  CopiesCase it{name, {}, -1};
  it.sync.method = method;
  it.sync.tau = it.sync.period = period;
  return it;
}

std::vector<CopiesCase> cases_of(const LocalLab& o) {
  std::vector<CopiesCase> all = {local_case("parallel SGD", "allreduce", 1)};
  for (const int64_t tau : o.periods) all.push_back(local_case(fmt::format("local, τ = {}", tau), "local", tau));
  CopiesCase post = local_case("post-local, τ = 8 after half", "local", 8);
  post.sync.local_after = o.copies.steps / 2;
  all.push_back(post);
  CopiesCase fedavg =
      local_case(fmt::format("FedAvg, {} of {}, τ = 8", o.copies.nproc / 2, o.copies.nproc), "local", 8);
  fedavg.sync.sample = o.copies.nproc / 2;
  all.push_back(fedavg);
  CopiesCase outer = local_case("DiLoCo, H = 32", "diloco", 32);
  all.push_back(outer);
  return all;
}

// All averages are equal: the bytes of one are those per round of the run with the shortest period.
void expect_rounds(std::vector<DivergentRun>& runs, int64_t steps) {
  const DivergentRun* first = nullptr;
  for (DivergentRun& run : runs) {
    if (run.it.sync.method != "local" || run.it.sync.sample > 0 || run.it.sync.local_after > 0) continue;
    if (!first) first = &run;
    const double of_one = static_cast<double>(first->bytes) / static_cast<double>(steps / first->it.sync.tau);
    run.it.formula_bytes = of_one * static_cast<double>(steps / run.it.sync.tau);
  }
}

Findings findings_of(const std::vector<DivergentRun>& runs) {
  Findings findings;
  for (const DivergentRun& run : runs) {
    if (run.it.formula_bytes >= 0)
      findings.exact(fmt::format("{}: bytes of a run", run.it.name), "1/τ of parallel SGD's", run.it.formula_bytes,
                     static_cast<double>(run.bytes), "B");
    if (run.it.name == "local, τ = 1")
      findings.within("local, τ = 1: excess loss is parallel SGD's", "", runs[0].excess, run.excess, 1e-9);
    else
      findings.show(fmt::format("{}: final excess loss", run.it.name), "", "", fmt::format("{:.1e}", run.excess));
  }
  return findings;
}

int run_lab_local(const LocalLab& o) {
  check(o.copies);
  for (const int64_t tau : o.periods)
    if (tau < 1 || tau > o.copies.steps)
      throw UsageError(fmt::format("--tau: got {}; expected 1 to {}, the number of steps", tau, o.copies.steps));
  const auto problem = problem_of(o.copies);
  std::vector<DivergentRun> runs;
  for (const CopiesCase& it : cases_of(o)) runs.push_back(run_copies(o.copies, *problem, it));
  expect_rounds(runs, o.copies.steps);
  std::vector<Cells> rows;
  for (const DivergentRun& run : runs) rows.push_back(row_of(o.copies, run));
  const std::string text = fmt::format(
      "{}\n\n{}Bytes are those of the rank that sends most, from its communicator; the formula divides those of the "
      "first period by the\nothers. Replicas diverge between averages, the more the longer the period and the more "
      "heterogeneous the nodes; f(x̄) is the\nloss of their mean.\n",
      words_of(o.copies, *problem), text_table(head_of_rows(), rows));
  return finish_lab({o.copies.json, o.copies.out}, "local", text, report_of(o.copies, *problem, runs),
                    draw_svg(fmt::format("Local steps, {} ranks", o.copies.nproc), "steps",
                             "squared error per coordinate", error_series(runs), Axes::plain),
                    findings_of(runs));
}

}  // namespace

void define_lab_local(const Arguments& app, Chosen& chosen) {
  auto o = keep<LocalLab>(app, chosen, run_lab_local);
  define_copies_options(app, o->copies);
  app.add_option("--tau", o->periods, "steps between averages [1,2,4,8,16,32]").delimiter(',').type_name("N");
}

}  // namespace esp::app
