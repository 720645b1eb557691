// espalier lab offload: optimizer states on the host or in a file, and delayed updates, in real runs of ZeRO 2 in bf16.
//
// It asserts: 2Φ bytes of weights remain on the device; the host holds 14Φ/N bytes; every step moves 2Φ/N bytes down to
// the host and 2Φ/N up; losses are bit-identical to those without offload. Runs with delayed updates compute different
// weights, so their losses differ.
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

namespace esp::app {
namespace {

struct OffloadLabOptions {
  int nproc = 2;
  int64_t steps = 12, dim = 256, layers = 4;
  std::string json, out;
};

struct OffloadCase {
  std::string name;
  std::vector<std::string> settings;
  std::string tier;  // memory tier of gradients and optimizer states
  // Formula bytes per parameter. device: the weights. host: all other states, in `tier`, before division by N.
  double device = 0, host = 0;
  bool delayed = false;
  TrainedRun run;
};

std::vector<OffloadCase> offload_cases() {
  return {{"none", {}, "device", 2, 14},
          {"host", {"sync.offload=host"}, "host", 2, 14},
          {"host, delayed update", {"sync.offload=host", "sync.delay_update=2"}, "host", 2, 14, true},
          {"file", {"sync.offload=file"}, "file", 2, 14}};
}

uint64_t at(const TrainedRank& rank, const std::string& tier, const char* category) {
  const auto found = rank.memory.find(tier + "." + category);
  return found == rank.memory.end() ? 0 : found->second.current;
}

double states_in(const TrainedRank& rank, const std::string& tier) {
  return static_cast<double>(at(rank, tier, "parameter") + at(rank, tier, "gradient") + at(rank, tier, "optimizer"));
}

std::vector<OffloadCase> measure(const OffloadLabOptions& o) {
  LabTrainer trainer;
  std::vector<OffloadCase> specs = offload_cases();
  for (OffloadCase& spec : specs) {
    std::vector<std::string> settings = {"model.arch=gpt",         fmt::format("model.layers={}", o.layers),
                                         "model.heads=4",          fmt::format("model.dim={}", o.dim),
                                         "model.seq_len=64",       fmt::format("train.global_batch={}", 2 * o.nproc),
                                         "train.precision=bf16",   "sync.method=zero2",
                                         "run.deterministic=true", fmt::format("train.steps={}", o.steps)};
    settings.insert(settings.end(), spec.settings.begin(), spec.settings.end());
    spec.run = trainer.run(fmt::format("place-{}", &spec - specs.data()), o.nproc, settings);
  }
  return specs;
}

BarChart chart_of(const std::vector<OffloadCase>& specs) {
  BarChart chart{"Step time and device memory, by placement of the optimizer", {"ms per step"}, "", {}};
  for (const OffloadCase& spec : specs)
    chart.bars.push_back({spec.name,
                          {spec.run.median_step_ms(3)},
                          0,
                          fmt::format("{:.1f} ms, {} of states on the device", spec.run.median_step_ms(3),
                                      human_bytes(static_cast<uint64_t>(states_in(spec.run.ranks[0], "device"))))});
  return chart;
}

void check_memory(const OffloadLabOptions& o, const std::vector<OffloadCase>& specs, Findings& findings) {
  const auto phi = static_cast<double>(specs[0].run.parameters);
  for (const OffloadCase& spec : specs) {
    const TrainedRank& rank = spec.run.ranks[0];
    if (spec.tier != "host") continue;
    findings.within(fmt::format("{}: states on the device", spec.name), "2Φ", 2 * phi, states_in(rank, "device"), 0.001,
                    "B");
    if (!spec.delayed)
      findings.within(fmt::format("{}: states on the host", spec.name), "14Φ/N", 14 * phi / o.nproc,
                      states_in(rank, "host"), 0.001, "B");
  }
}

// Compares the bytes on the host link with the formula. The initial copy of the weights from the device to the host is
// subtracted.
void check_link(const OffloadLabOptions& o, const std::vector<OffloadCase>& specs, Findings& findings) {
  const auto phi = static_cast<double>(specs[0].run.parameters);
  const auto steps = static_cast<double>(o.steps);
  for (const OffloadCase& spec : specs)
    if (spec.tier == "host" && !spec.delayed) {
      double down = 0, up = 0;
      for (const TrainedRank& rank : spec.run.ranks) {
        down += static_cast<double>(rank.link_down) / o.nproc;
        up += static_cast<double>(rank.link_up) / o.nproc;
      }
      findings.within(fmt::format("{}: host-link bytes per rank and step, both directions", spec.name), "4Φ/N",
                      4 * phi / o.nproc, (down + up - 2 * phi / o.nproc) / steps, 0.001, "B");
    }
}

int run_lab_offload(const OffloadLabOptions& o) {
  if (o.nproc < 1 || o.nproc > 16 || o.steps < 5 || o.dim % 4 != 0 || o.layers < 1)
    throw UsageError(fmt::format(
        "got --nproc {}, --steps {}, --dim {}, --layers {}; expected --nproc from 1 to 16, --steps >= 5, --dim a "
        "multiple of 4, --layers >= 1",
        o.nproc, o.steps, o.dim, o.layers));
  const std::vector<OffloadCase> specs = measure(o);
  Findings findings;
  check_memory(o, specs, findings);
  check_link(o, specs, findings);
  std::vector<Cells> cells;
  Json rows = Json::array();
  for (const OffloadCase& spec : specs) {
    const TrainedRank& rank = spec.run.ranks[0];
    cells.push_back({spec.name, fmt::format("{:.1f}", spec.run.median_step_ms(3)),
                     human_bytes(static_cast<uint64_t>(states_in(rank, "device"))),
                     human_bytes(static_cast<uint64_t>(states_in(rank, "host"))),
                     human_bytes(static_cast<uint64_t>(states_in(rank, "file"))),
                     fmt::format("{:.9f}", spec.run.loss.back())});
    if (spec.name != "none") {
      const bool equal = spec.run.loss == specs[0].run.loss;
      findings.holds(fmt::format("{}: losses equal those without offload, bit for bit", spec.name), "",
                     spec.delayed ? "different updates" : "same", equal ? "same" : "different", equal != spec.delayed);
    }
    findings.show(fmt::format("{}: step time", spec.name), "", "",
                  fmt::format("{:.1f} ms", spec.run.median_step_ms(3)));
    const TrainedRun::LinkRate &down = spec.run.down, &up = spec.run.up;
    if (down.plain_copy_gb_per_s > 0 && up.plain_copy_gb_per_s > 0)
      findings.show(fmt::format("{}: link rate during copies, compared with a plain copy", spec.name), "", "",
                    fmt::format("{:.1f} GB/s down, {:.0f} % of {:.1f}; {:.1f} up, {:.0f} % of {:.1f}", down.gb_per_s,
                                100 * down.gb_per_s / down.plain_copy_gb_per_s, down.plain_copy_gb_per_s, up.gb_per_s,
                                100 * up.gb_per_s / up.plain_copy_gb_per_s, up.plain_copy_gb_per_s));
    rows.push_back({{"place", spec.name},
                    {"step_ms", spec.run.median_step_ms(3)},
                    {"device_bytes", states_in(rank, "device")},
                    {"host_bytes", states_in(rank, "host")},
                    {"file_bytes", states_in(rank, "file")},
                    {"link_down", rank.link_down},
                    {"link_up", rank.link_up},
                    {"down_gb_per_s", down.gb_per_s},
                    {"up_gb_per_s", up.gb_per_s},
                    {"losses", spec.run.loss}});
  }
  const BarChart chart = chart_of(specs);
  const std::string text = fmt::format(
      "A GPT of Φ = {} parameters in bf16 on {} ranks, ZeRO 2, {} steps; values of rank 0\n"
      "\n"
      "{}\n"
      "{}\n"
      "On a CPU the host is also the device, so only bytes and losses are meaningful here. On a "
      "GPU the link is PCIe,\n"
      "and delayed updates hide its time.\n",
      specs[0].run.parameters, o.nproc, o.steps,
      text_table({"optimizer", "step ms", "device", "host", "file", "last loss"}, cells), bars_text(chart, 40));
  const Json report = {
      {"ranks", o.nproc}, {"parameters", specs[0].run.parameters}, {"steps", o.steps}, {"places", rows}};
  return finish_lab({o.json, o.out}, "offload", text, report, bars_svg(chart), findings);
}

}  // namespace

void define_lab_offload(const Arguments& app, SelectedCommand& chosen) {
  auto o = bind_options<OffloadLabOptions>(app, chosen, run_lab_offload);
  app.add_option("--nproc", o->nproc, "ranks on this machine [2]").type_name("N");
  app.add_option("--steps", o->steps, "steps of each run [12]").type_name("N");
  app.add_option("--dim", o->dim, "model width [256]").type_name("D");
  app.add_option("--layers", o->layers, "layers of the model [4]").type_name("L");
  app.add_option("--json", o->json, "write the figures as JSON").type_name("FILE");
  app.add_option("--out", o->out, "folder for text, JSON and picture").type_name("DIR");
}

}  // namespace esp::app
