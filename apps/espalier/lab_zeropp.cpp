// espalier lab zeropp: bytes that ZeRO 3 sends between two nodes of two ranks each, with each part of ZeRO++ and with
// all parts. The bytes come from counters of real runs.
//
// The unit u is what one rank sends between nodes in one node-aware gather of 16-bit weights: u = (M−1)·2Φ/N bytes.
// Plain ZeRO 3 sends 3u per step: a gather for forward, a gather for backward, and a reduction. qwZ gathers 8-bit
// values with a scale every 2048 values. qgZ reduces 4-bit values with a scale every 128 values. hpZ gathers for
// backward inside the node.
#include <fmt/format.h>
#include <nlohmann/json.hpp>

#include "apps/espalier/lab_bars.h"
#include "apps/espalier/lab_output.h"
#include "apps/espalier/lab_table.h"
#include "apps/espalier/lab_train.h"
#include "apps/espalier/text_table.h"
#include "esp/base/error.h"

namespace esp::app {
namespace {

constexpr int kNodes = 2, kRanks = 4, kInside = kRanks / kNodes;
constexpr double kWeightBlock = 2048, kGradientBlock = 128;
// The lecture counts 8 and 4 bits of 16, without the scales of the blocks.
constexpr double kGatherRatio = 8.0 / 16, kReductionRatio = 4.0 / 16;
constexpr const char* kWithoutScales =
    "convention: the lecture counts only the encoded values; the figures here include a 32-bit scale per block";

struct ZeroppLabOptions {
  int64_t steps = 4, dim = 128, layers = 4;
  std::string json, out;
};

struct ZeroppCase {
  std::string name, quantise;
  double gathers = 0, reduction = 0;  // bytes sent between nodes by the formula, in units of u
  TrainedRun run;
  // measured, in units of u; negative: not measured, because plain ZeRO 3 has no groups of nodes
  double gathered = -1, reduced = -1;
};

std::vector<ZeroppCase> zeropp_cases() {
  const double byte = (1 + 4 / kWeightBlock) / 2, half = (0.5 + 4 / kGradientBlock) / 2;
  // Without qgZ, a node-aware reduction sends its sums in 32 bits, which doubles its bytes.
  return {{"ZeRO 3", "none", 2, 1, {}},
          {"qwZ", "qwz", 2 * byte, 2, {}},
          {"hpZ", "hpz", 1, 2, {}},
          {"qgZ", "qgz", 2, half, {}},
          {"all three", "qwz,hpz,qgz", byte, half, {}}};
}

// Groups of nodes are listed in the order of their use: the group for reductions, then the group for gathers.
void count(ZeroppCase& spec, int64_t steps, double unit) {
  std::vector<double> across;
  for (const TrainedRank::Calls& calls : spec.run.ranks[0].comm)
    if (calls.group == "across_nodes")
      across.push_back(static_cast<double>(calls.bytes_sent) / static_cast<double>(steps) / unit);
  if (across.size() != 2) return;
  spec.reduced = across[0];
  spec.gathered = across[1];
}

BarChart chart_of(const std::vector<ZeroppCase>& specs) {
  BarChart chart{"Sent between nodes, per rank and step, in units of u (one gather of 16-bit values)",
                 {"gathers", "reduction"},
                 "formula",
                 {}};
  for (const ZeroppCase& spec : specs) {
    const bool counted = spec.gathered >= 0;
    const double gathers = counted ? spec.gathered : spec.gathers, reduction = counted ? spec.reduced : spec.reduction;
    chart.bars.push_back({spec.name,
                          {gathers, reduction},
                          spec.gathers + spec.reduction,
                          fmt::format("{:.3f}{}", gathers + reduction, counted ? "" : " by formula")});
  }
  return chart;
}

int run_lab_zeropp(const ZeroppLabOptions& o) {
  if (o.steps < 1 || o.dim % 4 != 0 || o.layers < 1)
    throw UsageError(fmt::format(
        "got --steps {}, --dim {}, --layers {}; expected --steps >= 1, --dim a multiple of 4, --layers >= 1", o.steps,
        o.dim, o.layers));
  LabTrainer trainer;
  std::vector<ZeroppCase> specs = zeropp_cases();
  Findings findings;
  std::vector<Cells> cells;
  Json rows = Json::array();
  double unit = 0, phi = 0;
  for (ZeroppCase& spec : specs) {
    spec.run = trainer.run(
        fmt::format("part-{}", &spec - specs.data()), kRanks,
        {"model.arch=gpt", fmt::format("model.layers={}", o.layers), "model.heads=4",
         fmt::format("model.dim={}", o.dim), "model.seq_len=64", fmt::format("train.global_batch={}", kRanks),
         "train.precision=bf16", fmt::format("train.steps={}", o.steps), "sync.method=zero3",
         fmt::format("comm.nodes={}", kNodes), "sync.quantise=" + spec.quantise});
    phi = static_cast<double>(spec.run.parameters);
    unit = (kNodes - 1) * 2 * phi / kRanks;
    count(spec, o.steps, unit);
  }
  const auto parameter_bytes = [](const ZeroppCase& spec) {
    return static_cast<double>(spec.run.ranks[0].memory.at("device.parameter").current);
  };
  const auto plain = static_cast<double>(specs[0].run.ranks[0].sent("all_gather", "gather"));
  findings.within("ZeRO 3: bytes that a rank sends in the two gathers of a step", "2Φ·(N−1)/N each",
                  2 * 2 * phi * (kRanks - 1) / kRanks, plain / static_cast<double>(o.steps), 0.001, "B");
  for (const ZeroppCase& spec : specs) {
    const bool counted = spec.gathered >= 0;
    if (counted) {
      const bool printed = spec.name == "all three";
      findings.within(fmt::format("{}: gathers across nodes, in u", spec.name), printed ? "0.5" : "", spec.gathers,
                      spec.gathered, 0.005);
      Finding& reduction = findings.within(fmt::format("{}: reduction across nodes, in u", spec.name),
                                           printed ? "0.25" : "", spec.reduction, spec.reduced, 0.005);
      if (printed) {
        reduction.note = kWithoutScales;
        reduction.convention = fmt::format("{}", kReductionRatio);
      }
    }
    cells.push_back({spec.name, counted ? fmt::format("{:.4f}", spec.gathered) : "–",
                     fmt::format("{:.4f}", spec.gathers), counted ? fmt::format("{:.4f}", spec.reduced) : "–",
                     fmt::format("{:.4f}", spec.reduction), fmt::format("{:.0f}", parameter_bytes(spec)),
                     fmt::format("{:.6f}", spec.run.loss.back())});
    rows.push_back({{"part", spec.name},
                    {"gathers", counted ? Json(spec.gathered) : Json()},
                    {"gathers_formula", spec.gathers},
                    {"reduction", counted ? Json(spec.reduced) : Json()},
                    {"reduction_formula", spec.reduction},
                    {"parameter_bytes", parameter_bytes(spec)},
                    {"losses", spec.run.loss}});
  }
  findings.exact("hpZ: additional bytes of weights per rank", "2Φ/G", 2 * phi / kInside,
                 parameter_bytes(specs[2]) - parameter_bytes(specs[0]), "B");
  Finding& all_three = findings.show("all three: sent between nodes, in u (ZeRO 3: 3 u)", "0.75",
                                     fmt::format("{:.4f}", specs[4].gathers + specs[4].reduction),
                                     fmt::format("{:.4f}", specs[4].gathered + specs[4].reduced));
  all_three.note = kWithoutScales;
  all_three.convention = fmt::format("{}", kGatherRatio + kReductionRatio);
  const BarChart chart = chart_of(specs);
  const std::string text = fmt::format(
      "A GPT of Φ = {:.0f} parameters in bf16 on {} nodes of {} ranks; u = (M−1)·2Φ/N = {:.0f} bytes per "
      "rank\n\n{}\n{}\n"
      "Plain ZeRO 3 is not node-aware: its row shows what a node-aware ZeRO 3 would send.\n",
      phi, kNodes, kInside, unit,
      text_table({"", "gathers, measured", "formula", "reduction, measured", "formula", "weights, B", "last loss"},
                 cells),
      bars_text(chart, 50));
  const Json report = {
      {"parameters", phi}, {"nodes", kNodes}, {"ranks", kRanks}, {"unit_bytes", unit}, {"parts", rows}};
  return finish_lab({o.json, o.out}, "zeropp", text, report, bars_svg(chart), findings);
}

}  // namespace

void define_lab_zeropp(const Arguments& app, SelectedCommand& chosen) {
  auto o = bind_options<ZeroppLabOptions>(app, chosen, run_lab_zeropp);
  app.add_option("--steps", o->steps, "steps of each run [4]").type_name("N");
  app.add_option("--dim", o->dim, "model width [128]").type_name("D");
  app.add_option("--layers", o->layers, "layers of the model [4]").type_name("L");
  app.add_option("--json", o->json, "write the figures as JSON").type_name("FILE");
  app.add_option("--out", o->out, "folder for text, JSON and picture").type_name("DIR");
}

}  // namespace esp::app
