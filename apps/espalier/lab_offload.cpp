// espalier lab offload: optimizer states on the host or in a file, and delayed updates, by real runs of ZeRO 2 in bf16.
//
// Assertions: 2Φ bytes of weights remain on the device, the host holds 14Φ/N, every step moves 2Φ/N bytes down and 2Φ/N
// up, and the losses equal those without offload, bit for bit. With delayed updates they follow another recurrence.
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

struct OffloadLab {
  int nproc = 2;
  int64_t steps = 12, dim = 256, layers = 4;
  std::string json, out;
};

struct Place {
  std::string name;
  std::vector<std::string> settings;
  std::string tier;  // location of gradients and optimizer
  // bytes per parameter, by the formula: of weights on the device, of the rest over N there
  double device = 0, host = 0;
  bool delayed = false;
  Trained run;
};

std::vector<Place> places_of() {
  return {{"none", {}, "device", 2, 14},
          {"host", {"sync.offload=host"}, "host", 2, 14},
          {"host, a step behind", {"sync.offload=host", "sync.delay_update=2"}, "host", 2, 14, true},
          {"file", {"sync.offload=file"}, "file", 2, 14}};
}

uint64_t at(const TrainedRank& rank, const std::string& tier, const char* category) {
  const auto found = rank.memory.find(tier + "." + category);
  return found == rank.memory.end() ? 0 : found->second.current;
}

double states_in(const TrainedRank& rank, const std::string& tier) {
  return static_cast<double>(at(rank, tier, "parameter") + at(rank, tier, "gradient") + at(rank, tier, "optimizer"));
}

std::vector<Place> measure(const OffloadLab& o) {
  LabTrainer trainer;
  std::vector<Place> places = places_of();
  for (Place& place : places) {
    std::vector<std::string> settings = {"model.arch=gpt",         fmt::format("model.layers={}", o.layers),
                                         "model.heads=4",          fmt::format("model.dim={}", o.dim),
                                         "model.seq_len=64",       fmt::format("train.global_batch={}", 2 * o.nproc),
                                         "train.precision=bf16",   "sync.method=zero2",
                                         "run.deterministic=true", fmt::format("train.steps={}", o.steps)};
    settings.insert(settings.end(), place.settings.begin(), place.settings.end());
    place.run = trainer.run(fmt::format("place-{}", &place - places.data()), o.nproc, settings);
  }
  return places;
}

BarChart chart_of(const std::vector<Place>& places) {
  BarChart chart{"A step with the optimizer elsewhere, and what stays on the device", {"ms a step"}, "", {}};
  for (const Place& place : places)
    chart.bars.push_back({place.name,
                          {place.run.median_step_ms(3)},
                          0,
                          fmt::format("{:.1f} ms, {} of states on the device", place.run.median_step_ms(3),
                                      human_bytes(static_cast<uint64_t>(states_in(place.run.ranks[0], "device"))))});
  return chart;
}

void check_memory(const OffloadLab& o, const std::vector<Place>& places, Findings& findings) {
  const auto phi = static_cast<double>(places[0].run.parameters);
  for (const Place& place : places) {
    const TrainedRank& rank = place.run.ranks[0];
    if (place.tier != "host") continue;
    findings.within(fmt::format("{}: states on the device", place.name), "2Φ", 2 * phi, states_in(rank, "device"),
                    0.001, "B");
    if (!place.delayed)
      findings.within(fmt::format("{}: states there", place.name), "14Φ/N", 14 * phi / o.nproc, states_in(rank, "host"),
                      0.001, "B");
  }
}

// The initial weights are copied down too, once.
void check_link(const OffloadLab& o, const std::vector<Place>& places, Findings& findings) {
  const auto phi = static_cast<double>(places[0].run.parameters);
  const auto steps = static_cast<double>(o.steps);
  for (const Place& place : places)
    if (place.tier == "host" && !place.delayed) {
      double down = 0, up = 0;
      for (const TrainedRank& rank : place.run.ranks) {
        down += static_cast<double>(rank.link_down) / o.nproc;
        up += static_cast<double>(rank.link_up) / o.nproc;
      }
      findings.within(fmt::format("{}: link, a rank and step, to the host and back", place.name), "4Φ/N",
                      4 * phi / o.nproc, (down + up - 2 * phi / o.nproc) / steps, 0.001, "B");
    }
}

int run_lab_offload(const OffloadLab& o) {
  if (o.nproc < 1 || o.nproc > 16 || o.steps < 5 || o.dim % 4 != 0 || o.layers < 1)
    throw UsageError("expected --nproc from 1 to 16, --steps >= 5, --dim a multiple of 4");
  const std::vector<Place> places = measure(o);
  Findings findings;
  check_memory(o, places, findings);
  check_link(o, places, findings);
  std::vector<Cells> cells;
  Json rows = Json::array();
  for (const Place& place : places) {
    const TrainedRank& rank = place.run.ranks[0];
    cells.push_back({place.name, fmt::format("{:.1f}", place.run.median_step_ms(3)),
                     human_bytes(static_cast<uint64_t>(states_in(rank, "device"))),
                     human_bytes(static_cast<uint64_t>(states_in(rank, "host"))),
                     human_bytes(static_cast<uint64_t>(states_in(rank, "file"))),
                     fmt::format("{:.9f}", place.run.loss.back())});
    if (place.name != "none") {
      const bool equal = place.run.loss == places[0].run.loss;
      findings.holds(fmt::format("{}: losses are those without, bit for bit", place.name), "",
                     place.delayed ? "another recurrence" : "same", equal ? "same" : "other", equal != place.delayed);
    }
    findings.show(fmt::format("{}: time of a step", place.name), "", "",
                  fmt::format("{:.1f} ms", place.run.median_step_ms(3)));
    const Trained::Way &down = place.run.down, &up = place.run.up;
    if (down.alone_gb_per_s > 0 && up.alone_gb_per_s > 0)
      findings.show(fmt::format("{}: link while it copies, of a copy alone", place.name), "", "",
                    fmt::format("{:.1f} GB/s down, {:.0f} % of {:.1f}; {:.1f} up, {:.0f} % of {:.1f}", down.gb_per_s,
                                100 * down.gb_per_s / down.alone_gb_per_s, down.alone_gb_per_s, up.gb_per_s,
                                100 * up.gb_per_s / up.alone_gb_per_s, up.alone_gb_per_s));
    rows.push_back({{"place", place.name},
                    {"step_ms", place.run.median_step_ms(3)},
                    {"device_bytes", states_in(rank, "device")},
                    {"host_bytes", states_in(rank, "host")},
                    {"file_bytes", states_in(rank, "file")},
                    {"link_down", rank.link_down},
                    {"link_up", rank.link_up},
                    {"down_gb_per_s", down.gb_per_s},
                    {"up_gb_per_s", up.gb_per_s},
                    {"losses", place.run.loss}});
  }
  const BarChart chart = chart_of(places);
  const std::string text = fmt::format(
      "A gpt of Φ = {} parameters in bf16 on {} ranks, ZeRO 2, {} steps; of rank 0\n\n{}\n{}\nOn one machine the host "
      "is the "
      "device: bytes and losses are what to read here; on a GPU the link is PCIe and the delay hides it.\n",
      places[0].run.parameters, o.nproc, o.steps,
      text_table({"optimizer", "step ms", "device", "host", "file", "last loss"}, cells), bars_text(chart, 40));
  const Json report = {
      {"ranks", o.nproc}, {"parameters", places[0].run.parameters}, {"steps", o.steps}, {"places", rows}};
  return finish_lab({o.json, o.out}, "offload", text, report, bars_svg(chart), findings);
}

}  // namespace

void define_lab_offload(const Arguments& app, Chosen& chosen) {
  auto o = keep<OffloadLab>(app, chosen, run_lab_offload);
  app.add_option("--nproc", o->nproc, "ranks on this machine [2]").type_name("N");
  app.add_option("--steps", o->steps, "of each run [12]").type_name("N");
  app.add_option("--dim", o->dim, "width of the model [256]").type_name("D");
  app.add_option("--layers", o->layers, "of the model [4]").type_name("L");
  app.add_option("--json", o->json, "write the figures as JSON").type_name("FILE");
  app.add_option("--out", o->out, "folder for text, JSON and picture").type_name("DIR");
}

}  // namespace esp::app
