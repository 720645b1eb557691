// Checks whether a policy can run: model sizes, the precisions that the processor supports, and the layout rules of
// parallel/layout.h, with exceptions for other training software.
#include <algorithm>

#include <fmt/format.h>

#include "esp/base/error.h"
#include "esp/parallel/layout.h"
#include "esp/plan/estimate.h"
#include "esp/plan/software.h"

namespace esp::plan {
namespace {

using Reason = std::optional<std::string>;

constexpr int64_t kMaxRanks = 1 << 20, kMaxSequences = int64_t{1} << 32;
// Schedules that the planner can estimate although the trainer (parallel/pp) does not run them.
constexpr std::string_view kSimulatedSchedules[] = {"zb-2p", "zb-h2",  "zb-1p", "zb-v",
                                                    "v-zb",  "v-half", "v-min", "dualpipe"};

Reason size_error(const Cluster& cluster, const Policy& p) {
  const struct {
    const char* key;
    int64_t value;
  } axes[] = {{"tp", p.tp}, {"pp", p.pp}, {"dp", p.dp}, {"cp", p.cp}, {"ep", p.ep}, {"interleave", p.interleave}};
  double product = 1;
  for (const auto& axis : axes) {
    if (axis.value < 1 || axis.value > kMaxRanks)
      return fmt::format("{}: got {}; expected 1 to {}", axis.key, axis.value, kMaxRanks);
  }
  for (const double axis : {p.tp, p.pp, p.dp, p.cp}) product *= axis;
  if (product > static_cast<double>(cluster.size()))
    return fmt::format("tp {} × pp {} × dp {} × cp {} needs {:.0f} processors; the cluster has {}. Try dp = {}", p.tp,
                       p.pp, p.dp, p.cp, product, cluster.size(),
                       std::max<int64_t>(1, cluster.size() / (int64_t{p.tp} * p.pp * p.cp)));
  if (p.micro_batch < 1 || p.global_batch < 1 || p.global_batch > kMaxSequences)
    return fmt::format("global batch: got {}; micro-batch: got {}; expected at least 1 each", p.global_batch,
                       p.micro_batch);
  if (p.zero < 0 || p.zero > 3) return fmt::format("zero: got {}; expected 0, 1, 2 or 3", p.zero);
  if (p.shard_group > 0 && int64_t{p.dp} * p.cp % p.shard_group != 0)
    return fmt::format("shard_group = {}: must divide the {} data-parallel ranks (dp x cp)", p.shard_group,
                       int64_t{p.dp} * p.cp);
  return std::nullopt;
}

Reason precision_error(const Cluster& cluster, const Policy& p) {
  try {
    (void)cluster.processor.flops(p.precision);
    (void)software_row(p.software);
  } catch (const UsageError& error) {
    return error.what();
  }
  return std::nullopt;
}

Reason shape_error(const ModelShape& s, const Policy& p) {
  if (s.layers == 0) return std::nullopt;  // unknown sizes break no rule
  if (s.hidden < 1 || s.seq < 1 || s.heads < 1)
    return fmt::format("model: got hidden {}, seq {}, heads {}; expected at least 1 each", s.hidden, s.seq, s.heads);
  if (p.ep > 1 && s.experts == 0) return fmt::format("ep = {}: the model has no experts; expected 1", p.ep);
  if (p.ep > 1 && s.experts % p.ep != 0) return fmt::format("ep = {}: must divide the {} experts", p.ep, s.experts);
  if (!p.stage_layers.empty()) {
    int64_t sum = 0;
    for (const int layers : p.stage_layers) sum += layers;
    if (sum != s.layers)
      return fmt::format("stage_layers: got {} layers in total; expected {}, as the model has", sum, s.layers);
  }
  return std::nullopt;
}

Reason layout_error(const ModelShape& s, const Policy& p) {
  if (s.layers == 0) return std::nullopt;
  const bool is_espalier = p.software == "espalier";
  parallel::LayoutSizes sizes;
  sizes.arch = s.arch;
  sizes.layers = s.layers;
  sizes.heads = s.heads;
  sizes.kv_heads = s.kv_heads > 0 ? s.kv_heads : s.heads;
  // If there are fewer key/value heads than tensor ranks, other software replicates them; Espalier does not.
  if (!is_espalier && p.tp > sizes.kv_heads && p.tp % sizes.kv_heads == 0) sizes.kv_heads = p.tp;
  sizes.ffn = s.ffn;
  sizes.vocab = s.vocab;
  sizes.seq_len = s.seq;
  sizes.experts = s.experts;
  sizes.global_batch = p.global_batch;
  sizes.micro_batch = p.micro_batch;
  parallel::Layout layout;
  layout.mesh = {.tp = p.tp, .cp = p.cp, .dp = p.dp, .pp = p.pp, .ep = is_espalier ? p.ep : 1};
  layout.sequence = p.sequence;
  layout.context = p.context == "allgather" && !is_espalier ? "ring" : p.context;
  layout.schedule = p.schedule;
  layout.interleave = p.interleave;
  if (!is_espalier && std::find(std::begin(kSimulatedSchedules), std::end(kSimulatedSchedules), p.schedule) !=
                          std::end(kSimulatedSchedules)) {
    layout.schedule = "1f1b";
    layout.interleave = 1;
  }
  if (!is_espalier && p.ep > 1 && (int64_t{p.dp} * p.cp * p.tp) % p.ep != 0)
    return fmt::format("ep = {}: must divide the {} ranks of a stage", p.ep, int64_t{p.dp} * p.cp * p.tp);
  try {
    if (const auto rule = parallel::find_violation(sizes, layout)) return rule->text();
  } catch (const UsageError& error) {
    return error.what();
  }
  return std::nullopt;
}

}  // namespace

std::optional<std::string> policy_error(const ModelShape& shape, const Cluster& cluster, const Policy& policy) {
  if (auto reason = size_error(cluster, policy)) return reason;
  if (auto reason = precision_error(cluster, policy)) return reason;
  if (auto reason = shape_error(shape, policy)) return reason;
  return layout_error(shape, policy);
}

void check(const ModelShape& shape, const Cluster& cluster, const Policy& policy) {
  if (const auto reason = policy_error(shape, cluster, policy)) throw UsageError(*reason);
}

}  // namespace esp::plan
