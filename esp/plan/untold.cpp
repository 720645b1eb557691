#include <algorithm>
#include <iterator>
#include <limits>

#include <fmt/format.h>

#include "esp/plan/rows.h"

namespace esp::plan {
namespace {

std::string_view word_for(Recompute recompute) {
  return recompute == Recompute::none ? "no" : recompute == Recompute::selective ? "selective" : "full";
}

constexpr int64_t kLacking[] = {0, 1, 2};

std::vector<int> chunk_choices(const MeasuredRow& row, bool open) {
  std::vector<int> choices = {row.policy.interleave};
  if (!open) return choices;
  // Chunks of whole layers, and micro-batches in groups of the stages, as interleaving wants them.
  // Where the layers do not divide, the ends may have one less each: there are the tables and the head.
  const int64_t layers = row.shape.layers;
  for (int v = 2; v <= (layers + 2) / row.policy.pp; ++v)
    if (std::any_of(std::begin(kLacking), std::end(kLacking),
                    [&](int64_t lacking) { return (layers + lacking) % (int64_t{v} * row.policy.pp) == 0; }))
      choices.push_back(v);
  return choices;
}

}  // namespace

void choose_untold(MeasuredRow& row, const Untold& open) {
  // What ran did fit: with gradients in 16 bits, where in 32 it could not have.
  if (row.kind == RowKind::step && row.policy.gradients_fp32 && !estimate(row.shape, row.cluster, row.policy).fits) {
    Policy narrow = row.policy;
    narrow.gradients_fp32 = false;
    if (estimate(row.shape, row.cluster, narrow).fits) {
      row.policy = narrow;
      row.assumed.push_back("gradients in 16 bits: in 32 it would not fit");
    }
  }
  if (!open.micro_batch && !open.interleave && !open.recompute) return;
  const Policy given = row.policy;
  const int64_t share = given.global_batch / given.dp;
  std::vector<int64_t> micro = {given.micro_batch};
  // A pipeline is filled best by single sequences, and is run so.
  if (open.micro_batch && given.pp == 1)
    for (int64_t b = 2; b <= 16 && b <= share; b *= 2)
      if (share % b == 0) micro.push_back(b);
  std::vector<Recompute> recomputes = {given.recompute};
  if (open.recompute) recomputes = {Recompute::none, Recompute::selective, Recompute::full};
  // What ran out of memory was nobody's choice: it stays as it is given.
  if (row.kind == RowKind::oom) recomputes.clear();
  double best = std::numeric_limits<double>::infinity();
  for (const Recompute recompute : recomputes)
    for (const int chunks : chunk_choices(row, open.interleave))
      for (const int64_t b : micro) {
        Policy p = given;
        p.micro_batch = b;
        p.recompute = recompute;
        p.interleave = chunks;
        if (chunks > 1) p.schedule = "interleaved";
        if (chunks > 1 && p.num_micro_batches() % p.pp != 0) continue;
        const Estimate e = estimate(row.shape, row.cluster, p);
        if (e.fits && e.step_s < best) {
          best = e.step_s;
          row.policy = p;
        }
      }
  if (open.micro_batch) row.assumed.push_back(fmt::format("micro-batches of {}", row.policy.micro_batch));
  if (open.interleave)
    row.assumed.push_back(
        fmt::format("{} chunk{} per stage", row.policy.interleave, row.policy.interleave > 1 ? "s" : ""));
  if (open.recompute) row.assumed.push_back(fmt::format("{} recomputation", word_for(row.policy.recompute)));
}

}  // namespace esp::plan
