// espalier lab numbers: compares the figures of the lectures with computed figures and gives the reasons for
// differences. It also shows the bytes and the rate of a real run on this machine.
#include <fmt/format.h>
#include <nlohmann/json.hpp>

#include "apps/espalier/command.h"
#include "apps/espalier/lab_bars.h"
#include "apps/espalier/lab_output.h"
#include "apps/espalier/lab_train.h"
#include "esp/plan/reference.h"

namespace esp::app {
namespace {

struct NumbersLabOptions {
  std::string json, out;
  bool no_run = false;
};

// Picture of the memory of GPT-3 with mixed-precision Adam, as the lectures list it.
std::string picture(const std::vector<plan::ReferenceNumber>& numbers) {
  BarChart chart;
  chart.title = "Memory of mixed-precision Adam, GB";
  chart.parts = {"weights", "gradients", "master weights", "first moments", "second moments"};
  Bar bar;
  bar.name = "GPT-3, 175 B";
  for (const char* name : {"weights, 16 bits", "gradients, 16 bits", "master weights, 32 bits",
                           "first moments, 32 bits", "second moments, 32 bits"})
    for (const plan::ReferenceNumber& one : numbers)
      if (one.item == std::string("GPT-3's ") + name) bar.parts.push_back(one.value);
  bar.note = "2800 GB: 35 A100s of 80 GB";
  chart.bars.push_back(bar);
  Bar small = bar;
  small.name = "Llama 3, 70 B";
  for (double& part : small.parts) part *= 70.0 / 175;
  small.note = "1120 GB: 14 A100s of 80 GB";
  chart.bars.push_back(small);
  return bars_svg(chart);
}

// Formats a computed figure in the row's unit: "14 GB", "0.44".
std::string with_unit(const std::string& figure, const std::string& unit) {
  return unit.empty() ? figure : figure + " " + unit;
}

// Adds every figure of the lectures beside the computed one.
void add_numbers(const std::vector<plan::ReferenceNumber>& numbers, Findings& findings) {
  for (const plan::ReferenceNumber& one : numbers) {
    Finding& row = findings.show(one.item, one.printed, with_unit(one.shown, one.unit), "");
    row.tolerance = one.tolerance;
    row.note = one.remark;
    if (one.convention) row.convention = with_unit(fmt::format("{:.6g}", *one.convention), one.unit);
  }
}

// Trains a small gpt and adds the memory of mixed-precision Adam and the CPU utilisation.
void add_run(Findings& findings) {
  LabTrainer trainer;
  const TrainedRun run =
      trainer.run("bf16", 1,
                  {"model.arch=gpt", "model.layers=4", "model.heads=4", "model.dim=256", "model.seq_len=128",
                   "train.global_batch=4", "train.precision=bf16", "train.steps=8"});
  const auto bytes = [&](const char* category) {
    return static_cast<double>(run.ranks[0].memory.at(std::string("device.") + category).current) /
           static_cast<double>(run.parameters);
  };
  const std::string phi = fmt::format("{} parameters trained here", run.parameters);
  findings.within("weights, 16 bits: bytes per parameter, " + phi, "2", 2, bytes("parameter"), 0.001);
  findings.within("gradients, 16 bits: bytes per parameter", "2", 2, bytes("gradient"), 0.001);
  findings.within("master weights and two moments: bytes per parameter", "4 + 4 + 4", 12, bytes("optimizer"), 0.001);
  const double achieved = 6.0 * static_cast<double>(run.parameters) * run.tokens_per_s;
  findings
      .show("FLOP/s of that run, counted as 6TP", "160 TFLOP/s on an A100", "",
            fmt::format("{:.1f} GFLOP/s, {:.0f} tokens/s", achieved * 1e-9, run.tokens_per_s))
      .note = "other hardware";
  findings
      .show("GPT-3 at that rate, 300 billion tokens", "30 days on 800 A100", "",
            fmt::format("{:.0f} years", 6 * 175e9 * 300e9 / achieved / 86400 / 365))
      .note = "other hardware";
}

int run_lab_numbers(const NumbersLabOptions& o) {
  const std::vector<plan::ReferenceNumber> numbers = plan::reference_numbers();
  Findings findings;
  add_numbers(numbers, findings);
  Json report = Json::array();
  for (size_t i = 0; i < numbers.size(); ++i) {
    const plan::ReferenceNumber& one = numbers[i];
    report.push_back({{"item", one.item},
                      {"printed", one.printed},
                      {"value", one.value},
                      {"unit", one.unit},
                      {"shown", one.shown},
                      {"remark", one.remark},
                      {"held", name_of(findings.all()[i].mark())}});
  }
  if (!o.no_run) add_run(findings);
  return finish_lab({o.json, o.out}, "numbers", "", report, picture(numbers), findings);
}

}  // namespace

void define_lab_numbers(const Arguments& app, SelectedCommand& chosen) {
  auto o = bind_options<NumbersLabOptions>(app, chosen, run_lab_numbers);
  app.add_flag("--no-run", o->no_run, "only computed figures, no training run");
  app.add_option("--json", o->json, "write the figures as JSON").type_name("FILE");
  app.add_option("--out", o->out, "folder for text, JSON and picture").type_name("DIR");
}

}  // namespace esp::app
