// espalier lab exchange: trains the same model with one parameter server, with as many servers as ranks, and with
// all-reduce. Compares the bytes sent and received by the busiest rank (counters of real runs) with the formulas.
//
// Server ranks are workers too, and a rank sends no message to itself. With W workers, one server receives (W−1)·S and
// sends as much. K = W servers each receive and send (W−1)/W·S as servers and as much as workers. A ring of N ranks
// sends 2(N−1)/N·S per rank.
#include <algorithm>

#include <fmt/format.h>
#include <nlohmann/json.hpp>

#include "apps/espalier/lab_bars.h"
#include "apps/espalier/lab_output.h"
#include "apps/espalier/lab_table.h"
#include "apps/espalier/lab_train.h"
#include "apps/espalier/machine.h"
#include "apps/espalier/text_table.h"
#include "esp/base/error.h"
#include "esp/sync/ps/virtual_time.h"

namespace esp::app {
namespace {

constexpr const char* kAllReduce = "all-reduce";

struct ExchangeLabOptions {
  int nproc = 4;
  int64_t steps = 6;
  double gbit = 10;
  std::string json, out;
};

struct ExchangeMethod {
  std::string name, formula;
  std::vector<std::string> settings;
  double busiest_of_s = 0;  // formula: bytes sent by the busiest rank, in units of S
  TrainedRun run;
  double sent = 0, received = 0;  // measured bytes per step of the busiest rank
  double link_s = 0;              // modelled time of an exchange between 16 workers with the given link
};

std::vector<ExchangeMethod> exchange_methods(const ExchangeLabOptions& o) {
  const double n = o.nproc;
  return {{"one server", "(W−1)·S received, and as much sent", {"sync.method=ps", "sync.servers=1"}, n - 1, {}},
          {fmt::format("{} servers", o.nproc),
           "(W−1)/W·S pushed, and as much pulled",
           {"sync.method=ps", fmt::format("sync.servers={}", o.nproc)},
           2 * (n - 1) / n,
           {}},
          {kAllReduce, "2(N−1)/N·S", {"sync.method=allreduce"}, 2 * (n - 1) / n, {}}};
}

// Counts the exchange of gradients and weights only. Among all-reduces this is the group with the most bytes; the other
// groups exchange norms and flags.
void count(ExchangeMethod& method, int64_t steps) {
  for (const TrainedRank& rank : method.run.ranks) {
    double sent = 0, received = 0;
    for (const TrainedRank::Calls& calls : rank.comm) {
      const auto out = static_cast<double>(calls.bytes_sent), in = static_cast<double>(calls.bytes_received);
      if (calls.group == "ps") sent += out, received += in;
      if (method.name == kAllReduce && calls.op == "all_reduce")
        sent = std::max(sent, out), received = std::max(received, in);
    }
    method.sent = std::max(method.sent, sent / static_cast<double>(steps));
    method.received = std::max(method.received, received / static_cast<double>(steps));
  }
}

std::vector<ExchangeMethod> measure(const ExchangeLabOptions& o) {
  LabTrainer trainer;
  std::vector<ExchangeMethod> methods = exchange_methods(o);
  for (ExchangeMethod& method : methods) {
    std::vector<std::string> settings = {
        "model.arch=gpt",      "model.layers=4",         "model.heads=4",
        "model.dim=128",       "model.seq_len=64",       fmt::format("train.global_batch={}", o.nproc),
        "train.optimizer=sgd", "run.deterministic=true", fmt::format("train.steps={}", o.steps)};
    settings.insert(settings.end(), method.settings.begin(), method.settings.end());
    method.run = trainer.run(fmt::format("way-{}", &method - methods.data()), o.nproc, settings);
    count(method, o.steps);
  }
  return methods;
}

// Models the waiting time for the 124 M parameters of GPT-2 in fp32 and 16 workers with one link each.
void model_links(const ExchangeLabOptions& o, std::vector<ExchangeMethod>& methods) {
  constexpr int kWorkers = 16;
  const double bytes = 124e6 * 4, rate = o.gbit * 1e9 / 8;
  methods[0].link_s = sync::push_pull_seconds(bytes, kWorkers, 1, rate, false);
  methods[1].link_s = sync::push_pull_seconds(bytes, kWorkers, kWorkers, rate, false);
  methods[2].link_s = 2.0 * (kWorkers - 1) / kWorkers * bytes / rate;
}

BarChart chart_of(const ExchangeLabOptions& o, const std::vector<ExchangeMethod>& methods, double s) {
  BarChart chart{fmt::format("Traffic of the busiest of {} ranks per step, in units of S = {}", o.nproc,
                             human_bytes(static_cast<uint64_t>(s))),
                 {"sent", "received"},
                 "",
                 {}};
  for (const ExchangeMethod& method : methods)
    chart.bars.push_back({method.name,
                          {method.sent / s, method.received / s},
                          0,
                          fmt::format("{}; {:.1f} ms per step", method.formula, method.run.median_step_ms())});
  return chart;
}

int run_lab_exchange(const ExchangeLabOptions& o) {
  if (o.nproc < 2 || o.nproc > 16) throw UsageError(fmt::format("--nproc: got {}; expected 2 to 16 ranks", o.nproc));
  if (o.steps < 2) throw UsageError(fmt::format("--steps: got {}; expected 2 or more", o.steps));
  if (!(o.gbit > 0 && o.gbit <= 1e6))
    throw UsageError(fmt::format("--gbit: got {}; expected a number in (0, 1e6]", o.gbit));
  std::vector<ExchangeMethod> methods = measure(o);
  model_links(o, methods);
  const double s = 4.0 * static_cast<double>(methods[0].run.parameters);
  // A number of ranks that is a power of two divides every layer evenly. Otherwise chunks differ by one element.
  const double uneven = (o.nproc & (o.nproc - 1)) == 0 ? 0 : 1e-3;
  Findings findings;
  std::vector<Cells> cells;
  Json rows = Json::array();
  for (const ExchangeMethod& method : methods) {
    findings.within(fmt::format("{}: bytes sent per step by the busiest rank", method.name), method.formula,
                    method.busiest_of_s * s, method.sent, uneven, "B");
    cells.push_back({method.name, fmt::format("{:.3f}", method.sent / s), fmt::format("{:.3f}", method.received / s),
                     fmt::format("{:.1f}", method.run.median_step_ms()), fmt::format("{:.6f}", method.run.loss.back()),
                     fmt::format("{:.2f}", method.link_s)});
    rows.push_back({{"way", method.name},
                    {"sent_bytes_per_step", method.sent},
                    {"received_bytes_per_step", method.received},
                    {"formula_bytes", method.busiest_of_s * s},
                    {"step_ms", method.run.median_step_ms()},
                    {"losses", method.run.loss},
                    {"modelled_s", method.link_s}});
  }
  for (size_t i = 0; i + 1 < methods.size(); ++i)
    findings.holds(fmt::format("{}: losses equal those of all-reduce, bit for bit", methods[i].name), "", "same",
                   fmt::format("{:.6f} and {:.6f}", methods[i].run.loss.back(), methods.back().run.loss.back()),
                   methods[i].run.loss == methods.back().run.loss);
  for (const ExchangeMethod& method : methods)
    findings.show(fmt::format("{}: 124 M parameters, 16 workers at {:g} Gbit/s",
                              &method == &methods[1] ? "16 servers" : method.name, o.gbit),
                  "", fmt::format("{:.2f} s", method.link_s), "");
  const BarChart chart = chart_of(o, methods, s);
  const std::string text = fmt::format(
      "A GPT of {} parameters on {} ranks, fp32, S = {:.0f} bytes of gradients, {} steps of SGD\n\n{}\n{}",
      methods[0].run.parameters, o.nproc, s, o.steps,
      text_table({"", "sent / S", "received / S", "step ms", "last loss", "modelled s, 124 M on 16 workers"}, cells),
      bars_text(chart, 50));
  const Json report = {{"ranks", o.nproc}, {"bytes", s}, {"steps", o.steps}, {"ways", rows}};
  return finish_lab({o.json, o.out}, "exchange", text, report, bars_svg(chart), findings);
}

}  // namespace

void define_lab_exchange(const Arguments& app, SelectedCommand& chosen) {
  auto o = bind_options<ExchangeLabOptions>(app, chosen, run_lab_exchange);
  app.add_option("--nproc", o->nproc, "ranks on this machine [4]").type_name("N");
  app.add_option("--steps", o->steps, "steps of each run [6]").type_name("N");
  app.add_option("--gbit", o->gbit, "Gbit/s of each link in the modelled column [10]").type_name("G");
  app.add_option("--json", o->json, "write the figures as JSON").type_name("FILE");
  app.add_option("--out", o->out, "folder for text, JSON and picture").type_name("DIR");
}

}  // namespace esp::app
