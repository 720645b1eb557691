// espalier lab activation: bytes that one more layer keeps between forward and backward, from the allocator of real
// runs, and the cost of recomputation.
//
// Two runs differ by one layer; the difference of their peaks is that of a layer. b sequences of s tokens, width h, a
// heads, 16 bits; a layer also keeps 16 bytes per row for its two norms, and the memory-efficient one 4a for attention,
// which the textbook omits.
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

struct ActivationLab {
  int64_t seq = 128, batch = 2, dim = 256, heads = 8, layers = 2, steps = 6;
  std::string json, out;
};

struct Kept {
  std::string activations, recompute, formula;
  double sbh = 0, attention = 0;  // coefficients of sbh and of as²b
  double row = 0;                 // further bytes per row of s·b
  Trained small, large;
  double bytes = 0;
  double measured() const {
    return static_cast<double>(large.ranks[0].memory.at("device.activation").peak) -
           static_cast<double>(small.ranks[0].memory.at("device.activation").peak);
  }
};

std::vector<Kept> rows_of(const ActivationLab& o) {
  const auto heads = static_cast<double>(o.heads);
  std::vector<Kept> rows = {{"textbook", "none", "34sbh + 5as²b", 34, 5, 16},
                            {"textbook", "selective", "34sbh", 34, 0, 16},
                            {"textbook", "full", "2sbh", 2, 0, 0},
                            {"lean", "none", "32sbh", 32, 0, 16 + 4 * heads},
                            {"lean", "selective", "24sbh", 24, 0, 16 + 4 * heads},
                            {"lean", "full", "2sbh", 2, 0, 0}};
  for (Kept& one : rows) {
    const auto sb = static_cast<double>(o.seq * o.batch);
    one.bytes = one.sbh * sb * static_cast<double>(o.dim) + one.attention * heads * sb * static_cast<double>(o.seq) +
                one.row * sb;
  }
  return rows;
}

Trained train(const ActivationLab& o, LabTrainer& trainer, const Kept& one, int64_t layers) {
  return trainer.run(fmt::format("{}-{}-{}", one.activations, one.recompute, layers), 1,
                     {"model.arch=gpt", fmt::format("model.layers={}", layers), fmt::format("model.heads={}", o.heads),
                      fmt::format("model.dim={}", o.dim), fmt::format("model.seq_len={}", o.seq),
                      fmt::format("train.global_batch={}", o.batch), "model.dropout=0.1", "train.precision=bf16",
                      "train.activations=" + one.activations, "train.recompute=" + one.recompute,
                      fmt::format("train.steps={}", o.steps)});
}

BarChart chart_of(const ActivationLab& o, const std::vector<Kept>& rows) {
  BarChart chart{fmt::format("Kept by a layer, s {} · b {} · h {} · a {}, bf16", o.seq, o.batch, o.dim, o.heads),
                 {"measured"},
                 "formula",
                 {}};
  for (const Kept& one : rows)
    chart.bars.push_back({fmt::format("{}, {}", one.activations, one.recompute),
                          {one.measured()},
                          one.bytes,
                          fmt::format("{} = {}", one.formula, human_bytes(static_cast<uint64_t>(one.measured())))});
  return chart;
}

int run_lab_activation(const ActivationLab& o) {
  if (o.seq < 8 || o.batch < 1 || o.heads < 1 || o.dim % o.heads != 0 || o.layers < 1 || o.steps < 2)
    throw UsageError("expected --seq >= 8, --dim a multiple of --heads, --layers >= 1, --steps >= 2");
  LabTrainer trainer;
  std::vector<Kept> rows = rows_of(o);
  Findings findings;
  std::vector<Cells> cells;
  Json json = Json::array();
  for (Kept& one : rows) {
    one.small = train(o, trainer, one, o.layers);
    one.large = train(o, trainer, one, o.layers + 1);
    const double plain_ms = rows[one.activations == "lean" ? 3 : 0].large.median_step_ms();
    const double times = one.large.median_step_ms() / plain_ms;
    findings.within(fmt::format("{}, recompute {}: kept by a layer", one.activations, one.recompute),
                    one.activations == "textbook" ? one.formula : "", one.bytes, one.measured(), 0.01, "B");
    if (one.recompute != "none") {
      findings.holds(
          fmt::format("{}, recompute {}: losses are those without, bit for bit", one.activations, one.recompute), "",
          "same", fmt::format("{:.6f}", one.large.loss.back()),
          one.large.loss == rows[one.activations == "lean" ? 3 : 0].large.loss);
      findings.show(fmt::format("{}, recompute {}: time of a step", one.activations, one.recompute), "",
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
      "What one more layer of a gpt adds to the peak of activations: s {}, b {}, h {}, a {}, dropout, bf16\n\n{}\n{}\n"
      "The formula's bytes count the rows of norms too (16 a row, lean 4a more). Times are of whole steps of {} "
      "layers.\n",
      o.seq, o.batch, o.dim, o.heads,
      text_table({"kept", "recompute", "formula", "bytes", "measured", "difference", "step ms", "times"}, cells),
      bars_text(chart, 50), o.layers + 1);
  const Json report = {{"seq", o.seq}, {"batch", o.batch}, {"dim", o.dim}, {"heads", o.heads}, {"rows", json}};
  return finish_lab({o.json, o.out}, "activation", text, report, bars_svg(chart), findings);
}

}  // namespace

void define_lab_activation(const Arguments& app, Chosen& chosen) {
  auto o = keep<ActivationLab>(app, chosen, run_lab_activation);
  app.add_option("--seq", o->seq, "tokens of a sequence [128]").type_name("S");
  app.add_option("--batch", o->batch, "sequences [2]").type_name("B");
  app.add_option("--dim", o->dim, "width [256]").type_name("H");
  app.add_option("--heads", o->heads, "of attention [8]").type_name("A");
  app.add_option("--layers", o->layers, "of the smaller run [2]").type_name("L");
  app.add_option("--steps", o->steps, "of each run [6]").type_name("N");
  app.add_option("--json", o->json, "write the figures as JSON").type_name("FILE");
  app.add_option("--out", o->out, "folder for text, JSON and picture").type_name("DIR");
}

}  // namespace esp::app
