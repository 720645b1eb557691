#include "esp/sync/tier/tile_plan.h"

#include <algorithm>

#include "esp/optim/rule.h"

namespace esp::sync {
namespace {

using Run = TilePlan::Run;

void append(std::vector<Run>& runs, const Run& next) {
  if (next.begin >= next.end) return;
  if (!runs.empty() && runs.back().updated == next.updated && runs.back().decay == next.decay)
    runs.back().end = next.end;
  else
    runs.push_back(next);
}

// The runs of all ranges, including gaps, numbered over the owned elements.
std::vector<Run> all_runs(const nn::ParameterList& parameters, std::span<const optim::OptimizerShard> owned) {
  std::vector<Run> runs;
  int64_t at = 0;
  for (const optim::OptimizerShard& one : owned) {
    const int64_t shift = at - one.range.begin, end = at + one.range.end - one.range.begin;
    for (const optim::DecayRun& run : optim::decay_runs(parameters, one.range)) {
      append(runs, {at, run.begin + shift, false, false});
      append(runs, {run.begin + shift, run.end + shift, true, run.decay});
      at = run.end + shift;
    }
    append(runs, {at, end, false, false});
    at = end;
  }
  return runs;
}

}  // namespace

TilePlan plan_tiles(const nn::ParameterList& parameters, std::span<const optim::OptimizerShard> owned, int64_t tile,
                    bool apart) {
  TilePlan plan;
  for (const optim::OptimizerShard& one : owned) {
    plan.begins.push_back(plan.count);
    plan.count += one.range.end - one.range.begin;
  }
  const auto cut = [&](int64_t from, int64_t to) {
    for (int64_t begin = from; begin < to; begin += tile)
      plan.tiles.push_back({begin, std::min(begin + tile, to), {}, {}});
  };
  if (apart) {
    for (size_t range = 0; range < owned.size(); ++range)
      cut(plan.begins[range], plan.begins[range] + owned[range].range.end - owned[range].range.begin);
  } else {
    cut(0, plan.count);
  }
  const std::vector<Run> runs = all_runs(parameters, owned);
  for (TilePlan::Tile& one : plan.tiles) {
    for (const Run& run : runs)
      append(one.runs, {std::max(run.begin, one.begin), std::min(run.end, one.end), run.updated, run.decay});
    for (size_t range = 0; range < owned.size(); ++range) {
      const int64_t first = plan.begins[range], last = first + owned[range].range.end - owned[range].range.begin;
      const int64_t begin = std::max(first, one.begin), end = std::min(last, one.end);
      if (begin < end) one.segments.push_back({begin, end, range, begin - first});
    }
    plan.largest = std::max(plan.largest, one.count());
  }
  return plan;
}

}  // namespace esp::sync
