// espalier lab exchange: the same model trained by one parameter server, by as many as there are ranks, and by
// all-reduce; bytes sent and received by the busiest rank, from counters of real runs, compared with the formulas.
//
// Server ranks are workers too, and messages to the own rank are not sent: one server receives (W−1)·S and sends as
// much, K = W servers (W−1)/W·S per direction, and a ring 2(N−1)/N·S.
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

struct ExchangeLab {
  int nproc = 4;
  int64_t steps = 6;
  double gbit = 10;
  std::string json, out;
};

struct Way {
  std::string name, words;
  std::vector<std::string> settings;
  double busiest_of_s = 0;  // sent by the rank that sends most, in S
  Trained run;
  double sent = 0, received = 0;  // per step, of the rank that moves most
  double link_s = 0;              // modelled, for `workers` and a given link
};

std::vector<Way> ways_of(const ExchangeLab& o) {
  const double n = o.nproc;
  return {{"one server", "(W−1)·S in and out of it", {"sync.method=ps", "sync.servers=1"}, n - 1, {}},
          {fmt::format("{} servers", o.nproc),
           "(W−1)/W·S up and as much down",
           {"sync.method=ps", fmt::format("sync.servers={}", o.nproc)},
           2 * (n - 1) / n,
           {}},
          {kAllReduce, "2(N−1)/N·S", {"sync.method=allreduce"}, 2 * (n - 1) / n, {}}};
}

// Counts only the exchange of gradients and weights: of all-reduces the largest group; the others are norms and flags.
void count(Way& way, int64_t steps) {
  for (const TrainedRank& rank : way.run.ranks) {
    double sent = 0, received = 0;
    for (const TrainedRank::Calls& calls : rank.comm) {
      const auto out = static_cast<double>(calls.bytes_sent), in = static_cast<double>(calls.bytes_received);
      if (calls.group == "ps") sent += out, received += in;
      if (way.name == kAllReduce && calls.op == "all_reduce")
        sent = std::max(sent, out), received = std::max(received, in);
    }
    way.sent = std::max(way.sent, sent / static_cast<double>(steps));
    way.received = std::max(way.received, received / static_cast<double>(steps));
  }
}

std::vector<Way> measure(const ExchangeLab& o) {
  LabTrainer trainer;
  std::vector<Way> ways = ways_of(o);
  for (Way& way : ways) {
    std::vector<std::string> settings = {
        "model.arch=gpt",      "model.layers=4",         "model.heads=4",
        "model.dim=128",       "model.seq_len=64",       fmt::format("train.global_batch={}", o.nproc),
        "train.optimizer=sgd", "run.deterministic=true", fmt::format("train.steps={}", o.steps)};
    settings.insert(settings.end(), way.settings.begin(), way.settings.end());
    way.run = trainer.run(fmt::format("way-{}", &way - ways.data()), o.nproc, settings);
    count(way, o.steps);
  }
  return ways;
}

// GPT-2's 124 M parameters in fp32, 16 workers with a link each: the resulting wait times.
void model_links(const ExchangeLab& o, std::vector<Way>& ways) {
  constexpr int kWorkers = 16;
  const double bytes = 124e6 * 4, rate = o.gbit * 1e9 / 8;
  ways[0].link_s = sync::push_pull_seconds(bytes, kWorkers, 1, rate, false);
  ways[1].link_s = sync::push_pull_seconds(bytes, kWorkers, kWorkers, rate, false);
  ways[2].link_s = 2.0 * (kWorkers - 1) / kWorkers * bytes / rate;
}

BarChart chart_of(const ExchangeLab& o, const std::vector<Way>& ways, double s) {
  BarChart chart{fmt::format("What the busiest of {} ranks sends and receives in a step, in S = {}", o.nproc,
                             human_bytes(static_cast<uint64_t>(s))),
                 {"sent", "received"},
                 "",
                 {}};
  for (const Way& way : ways)
    chart.bars.push_back({way.name,
                          {way.sent / s, way.received / s},
                          0,
                          fmt::format("{}; {:.1f} ms a step", way.words, way.run.median_step_ms())});
  return chart;
}

int run_lab_exchange(const ExchangeLab& o) {
  if (o.nproc < 2 || o.nproc > 16) throw UsageError(fmt::format("--nproc: got {}; expected 2 to 16", o.nproc));
  if (o.steps < 2) throw UsageError(fmt::format("--steps: got {}; expected 2 or more", o.steps));
  if (!(o.gbit > 0 && o.gbit <= 1e6))
    throw UsageError(fmt::format("--gbit: got {}; expected above 0, up to 1e6", o.gbit));
  std::vector<Way> ways = measure(o);
  model_links(o, ways);
  const double s = 4.0 * static_cast<double>(ways[0].run.parameters);
  // Layer sizes are divisible by powers of two; otherwise chunks differ by an element.
  const double uneven = (o.nproc & (o.nproc - 1)) == 0 ? 0 : 1e-3;
  Findings findings;
  std::vector<Cells> cells;
  Json rows = Json::array();
  for (const Way& way : ways) {
    findings.within(fmt::format("{}: sent by the busiest rank, a step", way.name), way.words, way.busiest_of_s * s,
                    way.sent, uneven, "B");
    cells.push_back({way.name, fmt::format("{:.3f}", way.sent / s), fmt::format("{:.3f}", way.received / s),
                     fmt::format("{:.1f}", way.run.median_step_ms()), fmt::format("{:.6f}", way.run.loss.back()),
                     fmt::format("{:.2f}", way.link_s)});
    rows.push_back({{"way", way.name},
                    {"sent_bytes_per_step", way.sent},
                    {"received_bytes_per_step", way.received},
                    {"formula_bytes", way.busiest_of_s * s},
                    {"step_ms", way.run.median_step_ms()},
                    {"losses", way.run.loss},
                    {"modelled_s", way.link_s}});
  }
  for (size_t i = 0; i + 1 < ways.size(); ++i)
    findings.holds(fmt::format("{}: losses are all-reduce's, bit for bit", ways[i].name), "", "same",
                   fmt::format("{:.6f} and {:.6f}", ways[i].run.loss.back(), ways.back().run.loss.back()),
                   ways[i].run.loss == ways.back().run.loss);
  for (const Way& way : ways)
    findings.show(fmt::format("{}: 124 M parameters, 16 workers at {:g} Gbit/s",
                              &way == &ways[1] ? "16 servers" : way.name, o.gbit),
                  "", fmt::format("{:.2f} s", way.link_s), "");
  const BarChart chart = chart_of(o, ways, s);
  const std::string text = fmt::format(
      "A gpt of {} parameters on {} ranks, fp32, S = {:.0f} bytes of gradients, {} steps of SGD\n\n{}\n{}",
      ways[0].run.parameters, o.nproc, s, o.steps,
      text_table({"", "sent / S", "received / S", "step ms", "last loss", "124 M on 16 links, modelled s"}, cells),
      bars_text(chart, 50));
  const Json report = {{"ranks", o.nproc}, {"bytes", s}, {"steps", o.steps}, {"ways", rows}};
  return finish_lab({o.json, o.out}, "exchange", text, report, bars_svg(chart), findings);
}

}  // namespace

void define_lab_exchange(const Arguments& app, Chosen& chosen) {
  auto o = keep<ExchangeLab>(app, chosen, run_lab_exchange);
  app.add_option("--nproc", o->nproc, "ranks on this machine [4]").type_name("N");
  app.add_option("--steps", o->steps, "of each run [6]").type_name("N");
  app.add_option("--gbit", o->gbit, "of a link in the modelled table [10]").type_name("G");
  app.add_option("--json", o->json, "write the figures as JSON").type_name("FILE");
  app.add_option("--out", o->out, "folder for text, JSON and picture").type_name("DIR");
}

}  // namespace esp::app
