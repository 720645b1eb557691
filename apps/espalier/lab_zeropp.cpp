// espalier lab zeropp: bytes that ZeRO 3 sends between two nodes of two ranks, with each part of ZeRO++ and with all of
// them, from counters of real runs.
//
// The unit is one node-aware gather of 16-bit weights between nodes, per rank: u = (M−1)·2Φ/N bytes. Plain ZeRO 3 needs
// three per step: a gather for forward, one for backward, and a reduction. qwZ sends 8-bit values and a scale every
// 2048 values, qgZ 4-bit values and a scale every 128, hpZ gathers for backward inside the node.
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
// As the lecture counts: 8 and 4 bits of 16, without the blocks' scales.
constexpr double kGatherCodes = 8.0 / 16, kReductionCodes = 4.0 / 16;
constexpr const char* kCodesAlone =
    "convention: the lecture counts encoded values alone; the figures here include a 32-bit scale per block";

struct ZeroppLab {
  int64_t steps = 4, dim = 128, layers = 4;
  std::string json, out;
};

struct Part {
  std::string name, quantise;
  double gathers = 0, reduction = 0;  // across nodes, in u, by the formula
  Trained run;
  double gathered = -1, reduced = -1;  // counted; negative: plain ZeRO 3 has no groups of nodes
};

std::vector<Part> parts_of() {
  const double byte = (1 + 4 / kWeightBlock) / 2, half = (0.5 + 4 / kGradientBlock) / 2;
  // A node-aware reduction without qgZ sends its sums in 32 bits.
  return {{"ZeRO 3", "none", 2, 1, {}},
          {"qwZ", "qwz", 2 * byte, 2, {}},
          {"hpZ", "hpz", 1, 2, {}},
          {"qgZ", "qgz", 2, half, {}},
          {"all three", "qwz,hpz,qgz", byte, half, {}}};
}

// The groups of nodes are in the order of their use: first those of reductions, then those of gathers.
void count(Part& part, int64_t steps, double unit) {
  std::vector<double> across;
  for (const TrainedRank::Calls& calls : part.run.ranks[0].comm)
    if (calls.group == "across_nodes")
      across.push_back(static_cast<double>(calls.bytes_sent) / static_cast<double>(steps) / unit);
  if (across.size() != 2) return;
  part.reduced = across[0];
  part.gathered = across[1];
}

BarChart chart_of(const std::vector<Part>& parts) {
  BarChart chart{
      "Sent between nodes, per rank and step, in gathers of 16-bit values", {"gathers", "reduction"}, "formula", {}};
  for (const Part& part : parts) {
    const bool counted = part.gathered >= 0;
    const double gathers = counted ? part.gathered : part.gathers, reduction = counted ? part.reduced : part.reduction;
    chart.bars.push_back({part.name,
                          {gathers, reduction},
                          part.gathers + part.reduction,
                          fmt::format("{:.3f}{}", gathers + reduction, counted ? "" : " by formula")});
  }
  return chart;
}

int run_lab_zeropp(const ZeroppLab& o) {
  if (o.steps < 1 || o.dim % 4 != 0 || o.layers < 1)
    throw UsageError("expected --steps >= 1, --dim a multiple of 4, --layers >= 1");
  LabTrainer trainer;
  std::vector<Part> parts = parts_of();
  Findings findings;
  std::vector<Cells> cells;
  Json rows = Json::array();
  double unit = 0, phi = 0;
  for (Part& part : parts) {
    part.run = trainer.run(
        fmt::format("part-{}", &part - parts.data()), kRanks,
        {"model.arch=gpt", fmt::format("model.layers={}", o.layers), "model.heads=4",
         fmt::format("model.dim={}", o.dim), "model.seq_len=64", fmt::format("train.global_batch={}", kRanks),
         "train.precision=bf16", fmt::format("train.steps={}", o.steps), "sync.method=zero3",
         fmt::format("comm.nodes={}", kNodes), "sync.quantise=" + part.quantise});
    phi = static_cast<double>(part.run.parameters);
    unit = (kNodes - 1) * 2 * phi / kRanks;
    count(part, o.steps, unit);
  }
  const auto parameter_bytes = [](const Part& part) {
    return static_cast<double>(part.run.ranks[0].memory.at("device.parameter").current);
  };
  const auto plain = static_cast<double>(parts[0].run.ranks[0].sent("all_gather", "gather"));
  findings.within("ZeRO 3: two gathers a step, sent by a rank to all others", "2Φ·(N−1)/N each",
                  2 * 2 * phi * (kRanks - 1) / kRanks, plain / static_cast<double>(o.steps), 0.001, "B");
  for (const Part& part : parts) {
    const bool counted = part.gathered >= 0;
    if (counted) {
      const bool printed = part.name == "all three";
      findings.within(fmt::format("{}: gathers across nodes, in u", part.name), printed ? "0.5" : "", part.gathers,
                      part.gathered, 0.005);
      Finding& reduction = findings.within(fmt::format("{}: reduction across nodes, in u", part.name),
                                           printed ? "0.25" : "", part.reduction, part.reduced, 0.005);
      if (printed) {
        reduction.note = kCodesAlone;
        reduction.convention = fmt::format("{}", kReductionCodes);
      }
    }
    cells.push_back({part.name, counted ? fmt::format("{:.4f}", part.gathered) : "–",
                     fmt::format("{:.4f}", part.gathers), counted ? fmt::format("{:.4f}", part.reduced) : "–",
                     fmt::format("{:.4f}", part.reduction), fmt::format("{:.0f}", parameter_bytes(part)),
                     fmt::format("{:.6f}", part.run.loss.back())});
    rows.push_back({{"part", part.name},
                    {"gathers", counted ? Json(part.gathered) : Json()},
                    {"gathers_formula", part.gathers},
                    {"reduction", counted ? Json(part.reduced) : Json()},
                    {"reduction_formula", part.reduction},
                    {"parameter_bytes", parameter_bytes(part)},
                    {"losses", part.run.loss}});
  }
  findings.exact("hpZ: values kept once more inside a node", "2Φ/G", 2 * phi / kInside,
                 parameter_bytes(parts[2]) - parameter_bytes(parts[0]), "B");
  Finding& all_three = findings.show("all three: sent between nodes, in u, of ZeRO 3's 3", "0.75",
                                     fmt::format("{:.4f}", parts[4].gathers + parts[4].reduction),
                                     fmt::format("{:.4f}", parts[4].gathered + parts[4].reduced));
  all_three.note = kCodesAlone;
  all_three.convention = fmt::format("{}", kGatherCodes + kReductionCodes);
  const BarChart chart = chart_of(parts);
  const std::string text = fmt::format(
      "A gpt of Φ = {:.0f} parameters in bf16 on {} nodes of {} ranks; u = (M−1)·2Φ/N = {:.0f} bytes per "
      "rank\n\n{}\n{}\nPlain "
      "ZeRO 3 knows no nodes: its row is what a node-aware one would send.\n",
      phi, kNodes, kInside, unit,
      text_table({"", "gathers, counted", "formula", "reduction, counted", "formula", "values held, B", "last loss"},
                 cells),
      bars_text(chart, 50));
  const Json report = {
      {"parameters", phi}, {"nodes", kNodes}, {"ranks", kRanks}, {"unit_bytes", unit}, {"parts", rows}};
  return finish_lab({o.json, o.out}, "zeropp", text, report, bars_svg(chart), findings);
}

}  // namespace

void define_lab_zeropp(const Arguments& app, Chosen& chosen) {
  auto o = keep<ZeroppLab>(app, chosen, run_lab_zeropp);
  app.add_option("--steps", o->steps, "of each run [4]").type_name("N");
  app.add_option("--dim", o->dim, "width of the model [128]").type_name("D");
  app.add_option("--layers", o->layers, "of the model [4]").type_name("L");
  app.add_option("--json", o->json, "write the figures as JSON").type_name("FILE");
  app.add_option("--out", o->out, "folder for text, JSON and picture").type_name("DIR");
}

}  // namespace esp::app
