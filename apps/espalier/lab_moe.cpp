// espalier lab moe: routing of a mixture of experts. Trains a small model with and without the load-balancing loss
// and shows the loads of its experts. Applies expert capacities and counts dropped tokens. Divides the experts over
// ranks (expert parallelism) and compares the bytes sent with the formula.
#include <algorithm>
#include <numeric>

#include <fmt/format.h>
#include <nlohmann/json.hpp>

#include "apps/espalier/command.h"
#include "apps/espalier/lab_bars.h"
#include "apps/espalier/lab_moe_runs.h"
#include "apps/espalier/lab_output.h"
#include "apps/espalier/lab_svg.h"
#include "apps/espalier/machine.h"
#include "apps/espalier/text_table.h"
#include "esp/base/error.h"

namespace esp::app {
namespace {

constexpr double kFactors[] = {0.5, 0.75, 1, 1.25, 1.5, 2, 4};

struct MoeLab {
  MoeLabOptions runs;
  std::string json, out;
};

struct LabeledRun {
  std::string name;
  double loss = 0;
  std::vector<ExpertLoads> layers;
};

struct RoutingResult {
  std::vector<LabeledRun> runs;  // three runs: untrained; trained without the load-balancing loss; trained with it
  std::vector<MoeTraining::CapacityDrops> unbalanced, balanced;
  std::vector<ExpertTraffic> traffic;
};

LabeledRun labeled_run(const std::string& name, MoeTraining& training) {
  return {name, training.loss(), training.loads()};
}

RoutingResult measure(const MoeLabOptions& o) {
  RoutingResult f;
  MoeTraining unbalanced(o, 0), balanced(o, o.aux);
  f.runs.push_back(labeled_run("untrained", unbalanced));
  unbalanced.train();
  balanced.train();
  f.runs.push_back(labeled_run("aux 0", unbalanced));
  f.runs.push_back(labeled_run(fmt::format("aux {}", o.aux), balanced));
  for (double factor : kFactors) {
    f.unbalanced.push_back(unbalanced.drops(factor));
    f.balanced.push_back(balanced.drops(factor));
  }
  for (int ranks : o.ranks)
    for (bool even : {true, false}) f.traffic.push_back(measure_expert_traffic(o, ranks, even));
  return f;
}

double share(const ExpertLoads& layer, size_t e) {
  const auto all = static_cast<double>(std::accumulate(layer.loads.begin(), layer.loads.end(), int64_t{0}));
  return static_cast<double>(layer.loads[e]) / all;
}

double percent(const MoeTraining::CapacityDrops& d) {
  return 100 * static_cast<double>(d.dropped) / static_cast<double>(d.choices);
}

// Index of the layer with the most uneven expert loads (without the load-balancing loss).
size_t most_uneven(const LabeledRun& run) {
  const auto less = [](const ExpertLoads& a, const ExpertLoads& b) { return a.balance < b.balance; };
  return static_cast<size_t>(std::max_element(run.layers.begin(), run.layers.end(), less) - run.layers.begin());
}

BarChart loads_chart(const MoeLabOptions& o, const RoutingResult& f) {
  const size_t shown = most_uneven(f.runs[1]);
  BarChart chart{fmt::format("Share of routing choices per expert, %, layer {} ({} experts, {} per token)", shown,
                             o.experts, o.chosen),
                 {"share"},
                 "equal shares",
                 {}};
  for (size_t i = 1; i < f.runs.size(); ++i)
    for (size_t e = 0; e < static_cast<size_t>(o.experts); ++e) {
      const ExpertLoads& layer = f.runs[i].layers[shown];
      chart.bars.push_back({fmt::format("{}, expert {}", f.runs[i].name, e),
                            {100 * share(layer, e)},
                            100.0 / static_cast<double>(o.experts),
                            fmt::format("{} choices", layer.loads[e])});
    }
  return chart;
}

BarChart drops_chart(const RoutingResult& f) {
  BarChart chart{"Dropped routing choices by capacity factor, %", {"dropped"}, "", {}};
  for (const auto* drops : {&f.unbalanced, &f.balanced})
    for (const MoeTraining::CapacityDrops& d : *drops)
      chart.bars.push_back({fmt::format("{}, factor {}", f.runs[drops == &f.unbalanced ? 1 : 2].name, d.factor),
                            {percent(d)},
                            0,
                            fmt::format("{:.1f} %: {} of {}", percent(d), d.dropped, d.choices)});
  return chart;
}

BarChart traffic_chart(const RoutingResult& f) {
  BarChart chart{"Bytes sent in a layer's all-to-alls, forward and backward, all ranks", {"counted"}, "formula", {}};
  for (const ExpertTraffic& t : f.traffic) {
    if (t.ranks == 1) continue;
    chart.bars.push_back({fmt::format("{} ranks, {}", t.ranks, t.balanced ? "balanced" : "random"),
                          {static_cast<double>(t.counted_bytes)},
                          t.formula_bytes,
                          human_bytes(t.counted_bytes)});
  }
  return chart;
}

std::string tables(const MoeLabOptions& o, const RoutingResult& f) {
  std::vector<Cells> rows;
  for (const LabeledRun& run : f.runs)
    for (size_t l = 0; l < run.layers.size(); ++l) {
      Cells row = {run.name, std::to_string(l), fmt::format("{:.3f}", run.loss),
                   fmt::format("{:.3f}", run.layers[l].balance)};
      for (size_t e = 0; e < run.layers[l].loads.size(); ++e)
        row.push_back(fmt::format("{:.1f}", 100 * share(run.layers[l], e)));
      rows.push_back(row);
    }
  Cells head = {"", "layer", "loss", "aux/λ"};
  for (int64_t e = 0; e < o.experts; ++e) head.push_back(fmt::format("e{} %", e));
  std::string text = text_table(head, rows) + "\n";

  rows.clear();
  for (size_t i = 0; i < f.unbalanced.size(); ++i)
    rows.push_back({fmt::format("{}", f.unbalanced[i].factor), std::to_string(f.unbalanced[i].capacity),
                    fmt::format("{:.1f} %", percent(f.unbalanced[i])),
                    fmt::format("{:.1f} %", percent(f.balanced[i]))});
  text += text_table({"capacity factor", "rows per expert and sequence", "dropped, " + f.runs[1].name,
                      "dropped, " + f.runs[2].name},
                     rows) +
          "\n";

  rows.clear();
  for (const ExpertTraffic& t : f.traffic)
    rows.push_back({std::to_string(t.ranks), t.balanced ? "balanced" : "random", std::to_string(t.calls),
                    std::to_string(t.counted_bytes), fmt::format("{:.0f}", t.formula_bytes),
                    t.formula_bytes > 0
                        ? fmt::format("{:+.2f} %", 100 * (static_cast<double>(t.counted_bytes) / t.formula_bytes - 1))
                        : "",
                    std::to_string(t.integer_bytes)});
  return text + text_table({"ranks", "routing", "all-to-alls", "measured bytes", "formula", "difference",
                            "bytes of row counts"},
                           rows);
}

Json report_of(const MoeLabOptions& o, const RoutingResult& f) {
  Json runs = Json::array(), drops = Json::array(), traffic = Json::array();
  for (const LabeledRun& run : f.runs) {
    Json layers = Json::array();
    for (const ExpertLoads& layer : run.layers) layers.push_back({{"loads", layer.loads}, {"balance", layer.balance}});
    runs.push_back({{"name", run.name}, {"loss", run.loss}, {"layers", std::move(layers)}});
  }
  for (size_t i = 0; i < f.unbalanced.size(); ++i)
    drops.push_back({{"factor", f.unbalanced[i].factor},
                     {"capacity", f.unbalanced[i].capacity},
                     {"choices", f.unbalanced[i].choices},
                     {"dropped_without_aux", f.unbalanced[i].dropped},
                     {"dropped_with_aux", f.balanced[i].dropped}});
  for (const ExpertTraffic& t : f.traffic)
    traffic.push_back({{"ranks", t.ranks},
                       {"balanced", t.balanced},
                       {"all_to_alls", t.calls},
                       {"counted_bytes", t.counted_bytes},
                       {"formula_bytes", t.formula_bytes},
                       {"count_bytes", t.integer_bytes}});
  return {{"experts", o.experts},
          {"experts_per_token", o.chosen},
          {"tokens", o.batch * o.seq},
          {"steps", o.steps},
          {"aux", o.aux},
          {"runs", std::move(runs)},
          {"capacity", std::move(drops)},
          {"traffic", std::move(traffic)}};
}

// Stacks SVG pictures vertically.
std::string stacked(const std::vector<std::string>& pictures) {
  std::string inner;
  double y = 0, width = 0;
  const auto number = [](const std::string& svg, const char* key) {
    return std::strtod(svg.c_str() + svg.find(key) + std::string_view(key).size(), nullptr);
  };
  for (const std::string& svg : pictures) {
    inner += fmt::format("<svg y=\"{}\" {}", y, svg.substr(svg.find(' ') + 1));
    y += number(svg, " height=\"");
    width = std::max(width, number(svg, " width=\""));
  }
  return svg_open(width, y) + inner + "</svg>\n";
}

void check(const MoeLabOptions& o) {
  if (o.experts < 1 || o.experts > 64) throw UsageError(fmt::format("--experts: got {}; expected 1 to 64", o.experts));
  if (o.chosen < 1 || o.chosen > o.experts)
    throw UsageError(fmt::format("--top-k: got {}; expected 1 to {}, the number of experts", o.chosen, o.experts));
  if (o.dim < 4 || o.dim % 4 != 0)
    throw UsageError(fmt::format("--dim: got {}; must be a multiple of 4, the number of heads", o.dim));
  if (o.seq < 1 || o.batch < 1 || o.steps < 0)
    throw UsageError(
        fmt::format("got --seq {}, --batch {}, --steps {}; expected --seq >= 1, --batch >= 1, --steps >= 0", o.seq,
                    o.batch, o.steps));
  for (int ranks : o.ranks)
    if (ranks < 1 || ranks > o.experts || ranks > 16)
      throw UsageError(
          fmt::format("--ranks: got {}; expected 1 to 16, and at most {}, the number of experts", ranks, o.experts));
}

Findings findings_of(const MoeLabOptions& o, const RoutingResult& f) {
  Findings findings;
  for (const ExpertTraffic& one : f.traffic) {
    const std::string label = fmt::format("{} ranks, {}: bytes of the all-to-alls of one layer", one.ranks,
                                          one.balanced ? "balanced" : "random router");
    if (one.ranks > 1 && one.balanced)
      findings.exact(label, "4(ep−1)/ep·kTh·e each", one.formula_bytes, static_cast<double>(one.counted_bytes), "B");
    else if (one.ranks > 1)
      findings.show(label, "", fmt::format("{:.0f} B", one.formula_bytes), fmt::format("{} B", one.counted_bytes));
  }
  for (const LabeledRun& run : f.runs) {
    int64_t choices = 0;
    for (const int64_t load : run.layers.at(0).loads) choices += load;
    findings.exact(fmt::format("{}: choices of all experts, layer 0", run.name), "k·T",
                   static_cast<double>(o.chosen * o.batch * o.seq), static_cast<double>(choices));
    findings.show(fmt::format("{}: aux/λ, layer 0", run.name), "1 when balanced", "1",
                  fmt::format("{:.3f}", run.layers.at(0).balance));
  }
  return findings;
}

int run_lab_moe(const MoeLab& options) {
  const MoeLabOptions& o = options.runs;
  check(o);
  const RoutingResult f = measure(o);
  const BarChart loads = loads_chart(o, f), drops = drops_chart(f), traffic = traffic_chart(f);
  const std::string text = fmt::format(
      "A GPT with 2 layers of width {}; {} experts of width {} per layer, {} per token. Trained "
      "for {} steps of {} × {} tokens,\n"
      "without and with the load-balancing loss. aux/λ is 1 if all experts have equal shares.\n"
      "\n"
      "{}\n"
      "{}\n"
      "{}\n"
      "{}Formula: 4·(ep − 1)/ep·k·T·h·e per rank. It is exact if every expert gets the same number "
      "of rows; with a random router the\n"
      "number of rows that stay on a rank varies. Row counts are exchanged by an all-to-all of E "
      "integers.\n",
      o.dim, o.experts, o.ffn, o.chosen, o.steps, o.batch, o.seq, bars_text(loads, 50), bars_text(drops, 50),
      bars_text(traffic, 50), tables(o, f));
  return finish_lab({options.json, options.out}, "moe", text, report_of(o, f),
                    stacked({bars_svg(loads), bars_svg(drops), bars_svg(traffic)}), findings_of(o, f));
}

}  // namespace

void define_lab_moe(const Arguments& app, SelectedCommand& chosen) {
  auto o = bind_options<MoeLab>(app, chosen, run_lab_moe);
  app.add_option("--experts", o->runs.experts, "experts per layer [8]").type_name("E");
  app.add_option("--top-k", o->runs.chosen, "experts per token [2]").type_name("K");
  app.add_option("--dim", o->runs.dim, "width of the model [64]").type_name("H");
  app.add_option("--ffn", o->runs.ffn, "width of an expert [128]").type_name("F");
  app.add_option("--seq", o->runs.seq, "tokens per sequence [64]").type_name("T");
  app.add_option("--batch", o->runs.batch, "sequences per step and rank [8]").type_name("B");
  app.add_option("--steps", o->runs.steps, "training steps [150]").type_name("N");
  app.add_option("--aux", o->runs.aux, "weight of the load-balancing loss [0.01]").type_name("λ");
  app.add_option("--ranks", o->runs.ranks, "numbers of expert-parallel ranks [1,2,4]").delimiter(',').type_name("N");
  app.add_option("--json", o->json, "write the figures as JSON").type_name("FILE");
  app.add_option("--out", o->out, "folder for text, JSON and picture").type_name("DIR");
}

}  // namespace esp::app
