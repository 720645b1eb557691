#include "esp/sync/tier/tile_plan.h"

#include <algorithm>

#include "esp/optim/update_rule.h"

namespace esp::sync {
namespace {

using UpdateRange = TilePlan::UpdateRange;

void append(std::vector<UpdateRange>& update_ranges, const UpdateRange& next) {
  if (next.begin >= next.end) return;
  if (!update_ranges.empty() && update_ranges.back().updated == next.updated &&
      update_ranges.back().decay == next.decay)
    update_ranges.back().end = next.end;
  else
    update_ranges.push_back(next);
}

// Splits the owned elements, numbered over all ranges, into contiguous ranges with equal weight decay. Gaps between
// parameters form their own ranges.
std::vector<UpdateRange> find_update_ranges(const nn::ParameterList& parameters,
                                            std::span<const optim::OptimizerShard> owned) {
  std::vector<UpdateRange> update_ranges;
  int64_t at = 0;
  for (const optim::OptimizerShard& one : owned) {
    const int64_t shift = at - one.range.begin, end = at + one.range.end - one.range.begin;
    for (const optim::DecayRange& run : optim::decay_ranges(parameters, one.range)) {
      append(update_ranges, {at, run.begin + shift, false, false});
      append(update_ranges, {run.begin + shift, run.end + shift, true, run.decay});
      at = run.end + shift;
    }
    append(update_ranges, {at, end, false, false});
    at = end;
  }
  return update_ranges;
}

}  // namespace

TilePlan plan_tiles(const nn::ParameterList& parameters, std::span<const optim::OptimizerShard> owned, int64_t tile,
                    bool split_at_ranges) {
  TilePlan plan;
  for (const optim::OptimizerShard& one : owned) {
    plan.begins.push_back(plan.count);
    plan.count += one.range.end - one.range.begin;
  }
  const auto cut = [&](int64_t from, int64_t to) {
    for (int64_t begin = from; begin < to; begin += tile)
      plan.tiles.push_back({begin, std::min(begin + tile, to), {}, {}});
  };
  if (split_at_ranges) {
    for (size_t range = 0; range < owned.size(); ++range)
      cut(plan.begins[range], plan.begins[range] + owned[range].range.end - owned[range].range.begin);
  } else {
    cut(0, plan.count);
  }
  const std::vector<UpdateRange> update_ranges = find_update_ranges(parameters, owned);
  for (TilePlan::Tile& one : plan.tiles) {
    for (const UpdateRange& piece : update_ranges)
      append(one.update_ranges,
             {std::max(piece.begin, one.begin), std::min(piece.end, one.end), piece.updated, piece.decay});
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
