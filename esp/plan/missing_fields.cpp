#include <algorithm>
#include <cmath>
#include <iterator>
#include <limits>

#include <fmt/format.h>

#include "esp/plan/rows.h"

namespace esp::plan {
namespace {

std::string_view word_for(RecomputePolicy recompute) {
  return recompute == RecomputePolicy::none ? "no" : recompute == RecomputePolicy::selective ? "selective" : "full";
}

constexpr int64_t kLacking[] = {0, 1, 2};

// A recomputation to try: none, selective, or full for `layers` layers of a stage (−1: all).
struct RecomputeCandidate {
  RecomputePolicy what = RecomputePolicy::none;
  int layers = -1;
};

std::vector<RecomputeCandidate> recompute_candidates(const MeasuredRow& row, bool open) {
  const Policy& p = row.policy;
  if (!open) return {{p.recompute, p.recompute_layers}};
  std::vector<RecomputeCandidate> choices = {{RecomputePolicy::none, -1}, {RecomputePolicy::selective, -1}};
  const int mine = static_cast<int>(row.shape.layers) / std::max(1, p.pp);
  for (const int eighths : {1, 2, 4, 6})
    if (mine * eighths / 8 > 0) choices.push_back({RecomputePolicy::full, mine * eighths / 8});
  choices.push_back({RecomputePolicy::full, -1});
  return choices;
}

std::vector<int> chunk_choices(const MeasuredRow& row, bool open) {
  std::vector<int> choices = {row.policy.interleave};
  if (!open) return choices;
  // Tries interleaving with chunks of whole layers. If the layers do not divide evenly, one or two pieces may have one
  // layer less: the first holds the embedding, the last the head.
  const int64_t layers = row.shape.layers;
  for (int v = 2; v <= (layers + 2) / row.policy.pp; ++v)
    if (std::any_of(std::begin(kLacking), std::end(kLacking),
                    [&](int64_t lacking) { return (layers + lacking) % (int64_t{v} * row.policy.pp) == 0; }))
      choices.push_back(v);
  // If the row says "interleaved", one chunk per stage is excluded.
  if (row.policy.schedule == "interleaved" && choices.size() > 1) choices.erase(choices.begin());
  return choices;
}

}  // namespace

void choose_missing(MeasuredRow& row, const MissingFields& open) {
  // A published run fitted in memory. If fp32 gradients would not fit but 16-bit gradients would, 16 bits are assumed.
  if (row.kind == RowKind::step && row.policy.gradients_fp32 && !estimate(row.shape, row.cluster, row.policy).fits) {
    Policy narrow = row.policy;
    narrow.gradients_fp32 = false;
    if (estimate(row.shape, row.cluster, narrow).fits) {
      row.policy = narrow;
      row.assumed.push_back("gradients in 16 bits, because 32-bit gradients would not fit");
    }
  }
  if (!open.micro_batch && !open.interleave && !open.recompute) return;
  const Policy given = row.policy;
  const int64_t share = given.global_batch / given.dp;
  std::vector<int64_t> micro = {given.micro_batch};
  // With a pipeline only micro-batches of one sequence are tried: the usual choice, because it gives the smallest
  // bubble.
  if (open.micro_batch && given.pp == 1)
    for (int64_t b = 2; b <= 16 && b <= share; b *= 2)
      if (share % b == 0) micro.push_back(b);
  std::vector<RecomputeCandidate> recomputes = recompute_candidates(row, open.recompute);
  // A run that ran out of memory was not tuned, so its recomputation stays as given.
  if (row.kind == RowKind::oom) recomputes.clear();
  // The run fitted in reality. So if no candidate is predicted to fit, the fastest one is taken.
  double best = std::numeric_limits<double>::infinity(), fastest = best;
  Policy quick = given;
  for (const RecomputeCandidate& again : recomputes)
    for (const int chunks : chunk_choices(row, open.interleave))
      for (const int64_t b : micro) {
        Policy p = given;
        p.micro_batch = b;
        p.recompute = again.what;
        p.recompute_layers = again.layers;
        p.interleave = chunks;
        if (chunks > 1) p.schedule = "interleaved";
        if (chunks > 1 && p.num_micro_batches() % p.pp != 0) continue;
        const Estimate e = estimate(row.shape, row.cluster, p);
        if (e.fits && e.step_s < best) {
          best = e.step_s;
          row.policy = p;
        }
        if (e.step_s < fastest) {
          fastest = e.step_s;
          quick = p;
        }
      }
  if (best > fastest && !std::isfinite(best)) {
    row.policy = quick;
    row.assumed.push_back("no candidate is predicted to fit, but the run fitted: the fastest candidate is used");
  }
  if (open.micro_batch) row.assumed.push_back(fmt::format("micro-batches of {}", row.policy.micro_batch));
  if (open.interleave)
    row.assumed.push_back(
        fmt::format("{} chunk{} per stage", row.policy.interleave, row.policy.interleave > 1 ? "s" : ""));
  if (open.recompute)
    row.assumed.push_back(row.policy.recompute_layers < 0
                              ? fmt::format("{} recomputation", word_for(row.policy.recompute))
                              : fmt::format("recomputation of {} layers per stage", row.policy.recompute_layers));
}

}  // namespace esp::plan
