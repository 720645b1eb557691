// espalier lab activation: measures the bytes that one more layer keeps between forward and backward, and the cost of
// recomputation. The bytes come from the allocator of real runs.
//
// Two runs differ by one layer, so the difference of their peaks belongs to that layer. Formulas use b sequences of s
// tokens, width h, a heads and 16-bit values. Terms that the textbook omits: a layer also keeps 16 bytes per row for
// its two norms, and with memory-efficient attention 4a more bytes per row.
#include <fmt/format.h>
#include <nlohmann/json.hpp>

#include "apps/espalier/lab_bars.h"
#include "apps/espalier/lab_output.h"
#include "apps/espalier/lab_table.h"
#include "apps/espalier/lab_train.h"
#include "apps/espalier/machine.h"
#include "apps/espalier/text_table.h"
#include "esp/base/error.h"

namespace esp::app {
namespace {

struct ActivationLabOptions {
  int64_t seq = 128, batch = 2, dim = 256, heads = 8, layers = 2, steps = 6;
  std::string json, out;
};

struct LayerActivation {
  std::string activations, recompute, formula;
  double sbh = 0, attention = 0;  // coefficients of the terms sbh and as²b
  double row = 0;                 // additional bytes for each of the s·b rows
  TrainedRun small, large;
  double bytes = 0;
  double measured() const {
    return static_cast<double>(large.ranks[0].memory.at("device.activation").peak) -
           static_cast<double>(small.ranks[0].memory.at("device.activation").peak);
  }
};

std::vector<LayerActivation> rows_of(const ActivationLabOptions& o) {
  const auto heads = static_cast<double>(o.heads);
  std::vector<LayerActivation> rows = {{"textbook", "none", "34sbh + 5as²b", 34, 5, 16},
                                       {"textbook", "selective", "34sbh", 34, 0, 16},
                                       {"textbook", "full", "2sbh", 2, 0, 0},
                                       {"lean", "none", "32sbh", 32, 0, 16 + 4 * heads},
                                       {"lean", "selective", "24sbh", 24, 0, 16 + 4 * heads},
                                       {"lean", "full", "2sbh", 2, 0, 0}};
  for (LayerActivation& one : rows) {
    const auto sb = static_cast<double>(o.seq * o.batch);
    one.bytes = one.sbh * sb * static_cast<double>(o.dim) + one.attention * heads * sb * static_cast<double>(o.seq) +
                one.row * sb;
  }
  return rows;
}

TrainedRun train(const ActivationLabOptions& o, LabTrainer& trainer, const LayerActivation& one, int64_t layers) {
  return trainer.run(fmt::format("{}-{}-{}", one.activations, one.recompute, layers), 1,
                     {"model.arch=gpt", fmt::format("model.layers={}", layers), fmt::format("model.heads={}", o.heads),
                      fmt::format("model.dim={}", o.dim), fmt::format("model.seq_len={}", o.seq),
                      fmt::format("train.global_batch={}", o.batch), "model.dropout=0.1", "train.precision=bf16",
                      "train.activations=" + one.activations, "train.recompute=" + one.recompute,
                      fmt::format("train.steps={}", o.steps)});
}

BarChart chart_of(const ActivationLabOptions& o, const std::vector<LayerActivation>& rows) {
  BarChart chart{
      fmt::format("Activation memory per layer, s {} · b {} · h {} · a {}, bf16", o.seq, o.batch, o.dim, o.heads),
      {"measured"},
      "formula",
      {}};
  for (const LayerActivation& one : rows)
    chart.bars.push_back({fmt::format("{}, {}", one.activations, one.recompute),
                          {one.measured()},
                          one.bytes,
                          fmt::format("{} = {}", one.formula, human_bytes(static_cast<uint64_t>(one.measured())))});
  return chart;
}

int run_lab_activation(const ActivationLabOptions& o) {
  if (o.seq < 8 || o.batch < 1 || o.heads < 1 || o.dim % o.heads != 0 || o.layers < 1 || o.steps < 2)
    throw UsageError(fmt::format(
        "got --seq {}, --batch {}, --heads {}, --dim {}, --layers {}, --steps {}; expected --seq >= 8, --batch, "
        "--heads and --layers >= 1, --dim a multiple of --heads, --steps >= 2",
        o.seq, o.batch, o.heads, o.dim, o.layers, o.steps));
  LabTrainer trainer;
  std::vector<LayerActivation> rows = rows_of(o);
  Findings findings;
  std::vector<Cells> cells;
  Json json = Json::array();
  for (LayerActivation& one : rows) {
    one.small = train(o, trainer, one, o.layers);
    one.large = train(o, trainer, one, o.layers + 1);
    const double plain_ms = rows[one.activations == "lean" ? 3 : 0].large.median_step_ms();
    const double times = one.large.median_step_ms() / plain_ms;
    findings.within(fmt::format("{}, recompute {}: activation memory per layer", one.activations, one.recompute),
                    one.activations == "textbook" ? one.formula : "", one.bytes, one.measured(), 0.01, "B");
    if (one.recompute != "none") {
      findings.holds(fmt::format("{}, recompute {}: losses equal those without recomputation, bit for bit",
                                 one.activations, one.recompute),
                     "", "same", fmt::format("{:.6f}", one.large.loss.back()),
                     one.large.loss == rows[one.activations == "lean" ? 3 : 0].large.loss);
      findings.show(fmt::format("{}, recompute {}: relative step time", one.activations, one.recompute), "",
                    one.recompute == "full" ? "4/3 at most" : "", fmt::format("{:.2f} ×", times));
    }
    cells.push_back({one.activations, one.recompute, one.formula, fmt::format("{:.0f}", one.bytes),
                     fmt::format("{:.0f}", one.measured()),
                     fmt::format("{:+.2f} %", 100 * (one.measured() / one.bytes - 1)),
                     fmt::format("{:.1f}", one.large.median_step_ms()), fmt::format("{:.2f}", times)});
    json.push_back({{"activations", one.activations},
                    {"recompute", one.recompute},
                    {"formula", one.formula},
                    {"formula_bytes", one.bytes},
                    {"measured_bytes", one.measured()},
                    {"step_ms", one.large.median_step_ms()}});
  }
  const BarChart chart = chart_of(o, rows);
  const std::string text = fmt::format(
      "Activation memory that one more GPT layer adds to the peak: s {}, b {}, h {}, a {}, dropout, bf16\n\n{}\n{}\n"
      "Formula bytes include the statistics of the norms (16 bytes per row; lean: 4a more). Times are those of whole "
      "steps with {} layers.\n",
      o.seq, o.batch, o.dim, o.heads,
      text_table({"activations", "recompute", "formula", "formula bytes", "measured bytes", "difference", "step ms",
                  "relative time"},
                 cells),
      bars_text(chart, 50), o.layers + 1);
  const Json report = {{"seq", o.seq}, {"batch", o.batch}, {"dim", o.dim}, {"heads", o.heads}, {"rows", json}};
  return finish_lab({o.json, o.out}, "activation", text, report, bars_svg(chart), findings);
}

}  // namespace

void define_lab_activation(const Arguments& app, SelectedCommand& chosen) {
  auto o = bind_options<ActivationLabOptions>(app, chosen, run_lab_activation);
  app.add_option("--seq", o->seq, "tokens per sequence [128]").type_name("S");
  app.add_option("--batch", o->batch, "sequences [2]").type_name("B");
  app.add_option("--dim", o->dim, "model width [256]").type_name("H");
  app.add_option("--heads", o->heads, "attention heads [8]").type_name("A");
  app.add_option("--layers", o->layers, "layers of the smaller model [2]").type_name("L");
  app.add_option("--steps", o->steps, "steps of each run [6]").type_name("N");
  app.add_option("--json", o->json, "write the figures as JSON").type_name("FILE");
  app.add_option("--out", o->out, "folder for text, JSON and picture").type_name("DIR");
}

}  // namespace esp::app
