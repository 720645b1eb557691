// espalier lab numbers: the figures of the lectures, ours beside them, and what is to be corrected; and the bytes and
// the rate of a real run on this machine.
#include <sstream>

#include <fmt/format.h>
#include <nlohmann/json.hpp>

#include "apps/espalier/command.h"
#include "apps/espalier/lab_bars.h"
#include "apps/espalier/lab_output.h"
#include "apps/espalier/lab_train.h"
#include "apps/espalier/text_table.h"
#include "esp/plan/reference.h"

namespace esp::app {
namespace {

struct NumbersLab {
  std::string json, out;
  bool no_run = false;
};

// What Adam in mixed precision makes of GPT-3, as the lectures list it.
std::string picture(const std::vector<plan::ReferenceNumber>& numbers) {
  BarChart chart;
  chart.title = "What Adam in mixed precision keeps, GB";
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
  small.note = "1120 GB: 14 of them";
  chart.bars.push_back(small);
  return bars_svg(chart);
}

// Remarks are sentences: they follow the columns, each line as long as it is.
std::string table_of(const std::vector<plan::ReferenceNumber>& numbers) {
  std::vector<Cells> rows;
  for (const plan::ReferenceNumber& one : numbers)
    rows.push_back({one.item, one.printed, one.shown + (one.unit.empty() ? "" : " " + one.unit)});
  std::istringstream lines(text_table({"number", "lecture", "ours"}, rows));
  std::string text, line;
  std::getline(lines, line);
  text = line + "  correction\n";
  for (const plan::ReferenceNumber& one : numbers) {
    std::getline(lines, line);
    text += line + (one.remark.empty() ? "" : "  " + one.remark) + "\n";
  }
  return text;
}

// Those that follow from the definitions alone, as they must come out.
constexpr std::pair<const char*, const char*> kExact[] = {
    {"GPT-3, matrices alone: 12 L d² + V d", "174563733504"},
    {"GPT-3 as the slide counts: 12 d² + 5 d a layer", "174569631744"},
    {"GPT-3, all parameters", "174604259328"},
    {"GPT-3's master weights, 32 bits", "700"},
    {"GPT-3's first moments, 32 bits", "700"},
    {"GPT-3's second moments, 32 bits", "700"},
    {"GPT-3's weights, 16 bits", "350"},
    {"GPT-3's gradients, 16 bits", "350"},
    {"data parallel, mixed-precision Adam: 16 bytes a parameter", "2800"},
    {"7.5 B parameters on 64 ranks, ZeRO 1", "31.4"},
    {"7.5 B parameters on 64 ranks, ZeRO 2", "16.6"},
    {"70 B, ZeRO 3 on 80 ranks", "14"},
    {"activations of GPT-3, 3.2 M tokens, nothing recomputed", "430.3"},
    {"… attention recomputed (selective)", "128.3"},
    {"… everything recomputed", "7.55"},
    {"A100s for GPT-3 in 30 days at 160 TFLOP/s, 6TP", "759.5"},
    {"… with recomputation, 8TP", "1012.7"},
    {"utilisation of GPT-3 on 1024 A100 in 35 days, 8TP (HFU)", "0.4347"},
    {"utilisation of LLaMA-65B on 2048 A100 in 21 days, 8TP", "0.628"},
};

void add_exact(const std::vector<plan::ReferenceNumber>& numbers, Findings& findings) {
  for (const auto& [item, right] : kExact)
    for (const plan::ReferenceNumber& one : numbers)
      if (one.item == item)
        findings.holds(fmt::format("{}{}", one.item, one.unit.empty() ? "" : ", " + one.unit), one.printed, one.shown,
                       "", one.shown == right);
}

// A small gpt trained for real: what Adam in mixed precision keeps, and how much of the processor it uses.
void add_run(Findings& findings) {
  LabTrainer trainer;
  const Trained run =
      trainer.run("bf16", 1,
                  {"model.arch=gpt", "model.layers=4", "model.heads=4", "model.dim=256", "model.seq_len=128",
                   "train.global_batch=4", "train.precision=bf16", "train.steps=8"});
  const auto bytes = [&](const char* category) {
    return static_cast<double>(run.ranks[0].memory.at(std::string("device.") + category).current) /
           static_cast<double>(run.parameters);
  };
  const std::string phi = fmt::format("of {} parameters trained here", run.parameters);
  findings.within("weights, 16 bits: bytes a parameter, " + phi, "2", 2, bytes("parameter"), 0.001);
  findings.within("gradients, 16 bits: bytes a parameter", "2", 2, bytes("gradient"), 0.001);
  findings.within("master weights and two moments: bytes a parameter", "4 + 4 + 4", 12, bytes("optimizer"), 0.001);
  const double achieved = 6.0 * static_cast<double>(run.parameters) * run.tokens_per_s;
  findings.show("achieved here by that run, 6TP", "160 TFLOP/s on an A100", "",
                fmt::format("{:.1f} GFLOP/s, {:.0f} tokens/s", achieved * 1e-9, run.tokens_per_s));
  findings.show("GPT-3 at that rate, 300 B tokens", "30 days on 800 A100", "",
                fmt::format("{:.0f} years", 6 * 175e9 * 300e9 / achieved / 86400 / 365));
}

int run_lab_numbers(const NumbersLab& o) {
  const std::vector<plan::ReferenceNumber> numbers = plan::reference_numbers();
  Json report = Json::array();
  for (const plan::ReferenceNumber& one : numbers)
    report.push_back({{"item", one.item},
                      {"printed", one.printed},
                      {"value", one.value},
                      {"unit", one.unit},
                      {"shown", one.shown},
                      {"remark", one.remark}});
  Findings findings;
  add_exact(numbers, findings);
  if (!o.no_run) add_run(findings);
  return finish_lab({o.json, o.out}, "numbers", table_of(numbers), report, picture(numbers), findings);
}

}  // namespace

void define_lab_numbers(const Arguments& app, Chosen& chosen) {
  auto o = keep<NumbersLab>(app, chosen, run_lab_numbers);
  app.add_flag("--no-run", o->no_run, "the figures alone, nothing trained");
  app.add_option("--json", o->json, "write the figures as JSON").type_name("FILE");
  app.add_option("--out", o->out, "folder for text, JSON and picture").type_name("DIR");
}

}  // namespace esp::app
