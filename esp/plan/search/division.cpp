#include "esp/plan/search/division.h"

#include <algorithm>
#include <cmath>
#include <limits>

#include <fmt/format.h>

#include "esp/base/check.h"
#include "esp/base/error.h"

namespace esp::plan {
namespace {

constexpr double kInfinite = std::numeric_limits<double>::infinity();

// Sum of the stage times and, to break ties, of their squares: the most even division wins.
struct TimeSum {
  double time = kInfinite, squares = kInfinite;
  bool operator<(const TimeSum& other) const {
    return time != other.time ? time < other.time : squares < other.squares;
  }
};

class DivisionSearch {
 public:
  DivisionSearch(std::span<const DivisionLayer> layers, int stages, std::span<const DevicePool> pools,
                 int64_t micro_batches)
      : pools_(pools), num_layers_(layers.size()), stages_(stages), micro_batches_(micro_batches) {
    for (const DivisionLayer& one : layers) {
      time_.push_back(time_.back() + one.time_s);
      state_.push_back(state_.back() + one.state_bytes);
      active_.push_back(active_.back() + one.active_bytes);
    }
    num_allocations_ = 1;
    for (const DevicePool& pool : pools) {
      strides_.push_back(num_allocations_);
      num_allocations_ *= static_cast<size_t>(std::min(pool.stages, stages)) + 1;
    }
    for (size_t allocation = 0; allocation < num_allocations_; ++allocation) {
      int sum = 0;
      for (size_t p = 0; p < pools.size(); ++p) sum += num_used(allocation, p);
      num_stages_used_.push_back(sum);
    }
  }

  // All possible stage times in ascending order. Each is a candidate for the pace, the time of the slowest stage.
  std::vector<double> paces() const {
    std::vector<double> all;
    for (const DevicePool& pool : pools_)
      for (size_t i = 0; i < num_layers_; ++i)
        for (size_t j = i + 1; j <= num_layers_; ++j) all.push_back((time_[j] - time_[i]) * pool.slowness);
    std::sort(all.begin(), all.end());
    // Merges times that differ only by rounding; the largest of them stays.
    std::vector<double> few;
    for (const double one : all) {
      if (!few.empty() && one <= few.back() * (1 + 1e-12))
        few.back() = one;
      else
        few.push_back(one);
    }
    return few;
  }

  // The smallest sum of stage times if no stage may be slower than `pace`.
  TimeSum at_pace(double pace) {
    best_.assign((num_layers_ + 1) * num_allocations_, TimeSum{});
    best_[0] = {0, 0};
    for (size_t allocation = 1; allocation < num_allocations_; ++allocation) {
      const int k = num_stages_used_[allocation] - 1;  // index of the last stage in this allocation
      if (k >= stages_) continue;
      for (size_t j = static_cast<size_t>(k) + 1; j + static_cast<size_t>(stages_ - k - 1) <= num_layers_; ++j)
        for (size_t p = 0; p < pools_.size(); ++p) relax(allocation, k, j, p, pace);
    }
    TimeSum best;
    for (size_t allocation = 0; allocation < num_allocations_; ++allocation)
      if (num_stages_used_[allocation] == stages_)
        best = std::min(best, best_[num_layers_ * num_allocations_ + allocation]);
    return best;
  }

  // Reconstructs the best division from the table of the last at_pace() call.
  LayerDivision trace(double pace) {
    LayerDivision division;
    size_t allocation = 0, j = num_layers_;
    TimeSum least;
    for (size_t one = 0; one < num_allocations_; ++one)
      if (num_stages_used_[one] == stages_ && best_[j * num_allocations_ + one] < least)
        least = best_[j * num_allocations_ + one], allocation = one;
    for (int k = stages_ - 1; k >= 0; --k) {
      const auto [i, p] = step_back(allocation, k, j, pace);
      division.layers.push_back(static_cast<int>(j - i));
      division.pool.push_back(static_cast<int>(p));
      j = i;
      allocation -= strides_[p];
    }
    std::reverse(division.layers.begin(), division.layers.end());
    std::reverse(division.pool.begin(), division.pool.end());
    return division;
  }

 private:
  int num_used(size_t allocation, size_t p) const {
    return static_cast<int>(allocation / strides_[p] % (static_cast<size_t>(std::min(pools_[p].stages, stages_)) + 1));
  }
  bool holds(size_t i, size_t j, size_t p, int k) const {
    if (pools_[p].memory_bytes == 0) return true;
    const auto alive = static_cast<double>(std::min<int64_t>(stages_ - k, micro_batches_));
    return state_[j] - state_[i] + alive * (active_[j] - active_[i]) <= pools_[p].memory_bytes;
  }
  TimeSum extend(size_t allocation, int k, size_t i, size_t j, size_t p, double pace) const {
    const double time = (time_[j] - time_[i]) * pools_[p].slowness;
    const TimeSum& before = best_[i * num_allocations_ + allocation - strides_[p]];
    if (before.time == kInfinite || time > pace || !holds(i, j, p, k)) return {};
    return {before.time + time, before.squares + time * time};
  }
  void relax(size_t allocation, int k, size_t j, size_t p, double pace) {
    if (num_used(allocation, p) == 0) return;
    TimeSum& best = best_[j * num_allocations_ + allocation];
    for (size_t i = j; i-- > static_cast<size_t>(k);) {
      if ((time_[j] - time_[i]) * pools_[p].slowness > pace) break;  // a stage with more layers is slower still
      best = std::min(best, extend(allocation, k, i, j, p, pace));
    }
  }
  std::pair<size_t, size_t> step_back(size_t allocation, int k, size_t j, double pace) const {
    const TimeSum& here = best_[j * num_allocations_ + allocation];
    for (size_t p = 0; p < pools_.size(); ++p) {
      if (num_used(allocation, p) == 0) continue;
      for (size_t i = j; i-- > static_cast<size_t>(k);) {
        const TimeSum sum = extend(allocation, k, i, j, p, pace);
        if (sum.time == here.time && sum.squares == here.squares) return {i, p};
      }
    }
    check_failed(__FILE__, __LINE__, "a step back", "no predecessor of a division");
  }

  std::span<const DevicePool> pools_;
  size_t num_layers_;
  int stages_;
  int64_t micro_batches_;
  std::vector<double> time_{0}, state_{0}, active_{0};  // prefix sums over the layers
  // an allocation is the number of stages on each pool, as a mixed-radix number; these are its strides
  std::vector<size_t> strides_;
  size_t num_allocations_;
  std::vector<int> num_stages_used_;  // by allocation: number of stages on all pools
  std::vector<TimeSum> best_;         // best sum by [number of assigned layers][allocation]
};

}  // namespace

std::optional<LayerDivision> divide(std::span<const DivisionLayer> layers, int stages,
                                    std::span<const DevicePool> pools, int64_t micro_batches) {
  int room = 0;
  for (const DevicePool& pool : pools) room += pool.stages;
  if (stages < 1 || static_cast<size_t>(stages) > layers.size() || stages > room)
    throw UsageError(
        fmt::format("pipeline: got {} stages; expected 1 to {} (the model has {} layers; the devices hold {} stages)",
                    stages, std::min<int64_t>(room, static_cast<int64_t>(layers.size())), layers.size(), room));
  DivisionSearch search(layers, stages, pools, micro_batches);
  const std::vector<double> paces = search.paces();
  const auto waits = static_cast<double>(micro_batches - 1);
  // If a pace is feasible, every slower one is too, so binary search finds the fastest feasible pace. For slower paces
  // the sum can only decrease.
  const auto first = std::partition_point(paces.begin(), paces.end(),
                                          [&](double pace) { return search.at_pace(pace).time == kInfinite; });
  if (first == paces.end()) return std::nullopt;
  const double least_sum = search.at_pace(paces.back()).time;
  double best = kInfinite, pace_of_best = 0;
  for (auto pace = first; pace != paces.end() && least_sum + waits * *pace < best; ++pace) {
    const double step = search.at_pace(*pace).time + waits * *pace;
    if (step < best) best = step, pace_of_best = *pace;
  }
  search.at_pace(pace_of_best);
  LayerDivision division = search.trace(pace_of_best);
  division.step_s = division_s(layers, division, pools, micro_batches);
  size_t i = 0;
  for (size_t k = 0; k < division.layers.size(); ++k) {
    double time = 0;
    for (int n = 0; n < division.layers[k]; ++n) time += layers[i++].time_s;
    division.slowest_stage_s =
        std::max(division.slowest_stage_s, time * pools[static_cast<size_t>(division.pool[k])].slowness);
  }
  return division;
}

double division_s(std::span<const DivisionLayer> layers, const LayerDivision& division,
                  std::span<const DevicePool> pools, int64_t micro_batches) {
  double sum = 0, slowest_piece = 0;
  size_t i = 0;
  const auto stages = static_cast<int64_t>(division.layers.size());
  for (int64_t k = 0; k < stages; ++k) {
    const DevicePool& pool = pools[static_cast<size_t>(division.pool[static_cast<size_t>(k)])];
    double time = 0, bytes = 0;
    const auto alive = static_cast<double>(std::min(stages - k, micro_batches));
    for (int n = 0; n < division.layers[static_cast<size_t>(k)]; ++n, ++i) {
      time += layers[i].time_s * pool.slowness;
      bytes += layers[i].state_bytes + alive * layers[i].active_bytes;
    }
    if (pool.memory_bytes > 0 && bytes > pool.memory_bytes) return kInfinite;
    sum += time;
    slowest_piece = std::max(slowest_piece, time);
  }
  return sum + static_cast<double>(micro_batches - 1) * slowest_piece;
}

}  // namespace esp::plan
