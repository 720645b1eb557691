#include "esp/plan/report.h"

#include <cmath>

#include <fmt/format.h>
#include <nlohmann/json.hpp>

#include "esp/plan/search/space.h"

namespace esp::plan {

std::string gigabytes(double bytes) {
  const double size = std::abs(bytes);
  if (size >= 1e15) return fmt::format("{:.1f} PB", bytes / 1e15);
  if (size >= 1e12) return fmt::format("{:.2f} TB", bytes / 1e12);
  if (size >= 1e8) return fmt::format("{:.2f} GB", bytes / 1e9);
  if (size >= 1e5) return fmt::format("{:.2f} MB", bytes / 1e6);
  return fmt::format("{:.0f} B", bytes);
}

std::string seconds(double time_s) {
  const double size = std::abs(time_s);
  if (size >= 1 || size == 0) return fmt::format("{:.3f} s", time_s);
  if (size >= 1e-3) return fmt::format("{:.2f} ms", time_s * 1e3);
  return fmt::format("{:.2f} µs", time_s * 1e6);
}

std::string grouped(double n) {
  std::string text = fmt::format("{:.0f}", n);
  const size_t first = text.starts_with('-') ? 1 : 0;
  for (size_t at = text.size(); at > first + 3;) text.insert(at -= 3, ",");
  return text;
}

std::string short_count(double n) {
  if (n >= 1e8) return fmt::format("{:.3f} B", n / 1e9);
  if (n >= 1e6) return fmt::format("{:.3f} M", n / 1e6);
  return grouped(n);
}

std::string describe(const Policy& p) {
  std::string text =
      fmt::format("tp {}{}, pp {}, dp {}", p.tp, p.sequence ? " with sequence parallelism" : "", p.pp, p.dp);
  if (p.cp > 1) text += fmt::format(", cp {} ({})", p.cp, p.context);
  if (p.ep > 1) text += fmt::format(", ep {}", p.ep);
  if (p.pp > 1) text += fmt::format(", {}{}", p.schedule, p.interleave > 1 ? fmt::format(" x{}", p.interleave) : "");
  if (p.zero > 0) text += fmt::format(", zero {}", p.zero);
  if (p.shard_group > 0) text += fmt::format(" in groups of {}", p.shard_group);
  if (p.offload != OffloadTarget::none) text += fmt::format(", offload to {}", name_of(p.offload));
  if (p.recompute != RecomputePolicy::none) text += fmt::format(", {} recomputation", name_of(p.recompute));
  return text + fmt::format(", {}, micro-batch {} of {}", p.precision, p.micro_batch, p.global_batch);
}

Json to_json(const Memory& m) {
  return {{"parameter", m.parameter},
          {"gradient", m.gradient},
          {"optimizer", m.optimizer},
          {"activation", m.activation},
          {"buffer", m.buffer},
          {"total", m.total()},
          {"other", m.other},
          {"slack", m.slack},
          {"allocated", m.allocated()},
          {"reserved", m.reserved()},
          {"host", m.host},
          {"file", m.file},
          {"stage", m.stage}};
}

Json to_json(const Policy& p) {
  return {{"tp", p.tp},
          {"pp", p.pp},
          {"dp", p.dp},
          {"cp", p.cp},
          {"ep", p.ep},
          {"sequence", p.sequence},
          {"context", p.context},
          {"schedule", p.pp > 1 ? p.schedule : "none"},
          {"interleave", p.interleave},
          {"micro_batch", p.micro_batch},
          {"global_batch", p.global_batch},
          {"precision", p.precision},
          {"zero", p.zero},
          {"shard_group", p.shard_group},
          {"offload", name_of(p.offload)},
          {"recompute", name_of(p.recompute)},
          {"recompute_layers", p.recompute_layers},
          {"flash", p.flash},
          {"optimizer", p.optimizer},
          {"software", p.software}};
}

Json to_json(const TrainingCost& c) {
  return {{"steps", c.steps}, {"hours", c.hours},           {"gpu_hours", c.gpu_hours},
          {"price", c.price}, {"energy_kwh", c.energy_kwh}, {"goodput", c.goodput}};
}

Json to_json(const Estimate& e) {
  Json comm = Json::array();
  for (const GroupTraffic& t : e.traffic)
    comm.push_back({{"group", t.group},
                    {"op", t.op},
                    {"tier", t.tier},
                    {"bytes", t.bytes},
                    {"time_s", t.time_s},
                    {"exposed_s", t.exposed_s}});
  Json stages = Json::array();
  for (const Memory& m : e.stages) stages.push_back(to_json(m));
  return {{"parameters", e.parameters},
          {"active_parameters", e.active_parameters},
          {"memory_bytes", to_json(e.memory)},
          {"stages", stages},
          {"flops_per_step", e.flops},
          {"hardware_flops_per_step", e.hardware_flops},
          {"step_s", e.step_s},
          {"interval_s", {e.low_s, e.high_s}},
          {"time_s",
           {{"compute", e.compute_s},
            {"bubble", e.bubble_s},
            {"exposed", e.exposed_s},
            {"optimizer", e.optimizer_s},
            {"offload", e.offload_s}}},
          {"tokens_per_s", e.tokens_per_s},
          {"tflops_per_gpu", e.tflops_per_gpu},
          {"mfu", e.mfu},
          {"hfu", e.hfu},
          {"bubble", e.bubble},
          {"comm", comm},
          {"fits", e.fits},
          {"reasons", e.reasons},
          {"assumed", e.assumed}};
}

}  // namespace esp::plan
