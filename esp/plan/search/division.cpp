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

// Least sum of the stages' times, then of their squares: ties go to the most even.
struct Sum {
  double time = kInfinite, squares = kInfinite;
  bool operator<(const Sum& other) const { return time != other.time ? time < other.time : squares < other.squares; }
};

class Walk {
 public:
  Walk(std::span<const DivisionLayer> layers, int stages, std::span<const DevicePool> pools, int64_t micro_batches)
      : pools_(pools), num_layers_(layers.size()), stages_(stages), micro_batches_(micro_batches) {
    for (const DivisionLayer& one : layers) {
      time_.push_back(time_.back() + one.time_s);
      state_.push_back(state_.back() + one.state_bytes);
      active_.push_back(active_.back() + one.active_bytes);
    }
    num_uses_ = 1;
    for (const DevicePool& pool : pools) {
      strides_.push_back(num_uses_);
      num_uses_ *= static_cast<size_t>(std::min(pool.stages, stages)) + 1;
    }
    for (size_t use = 0; use < num_uses_; ++use) {
      int sum = 0;
      for (size_t p = 0; p < pools.size(); ++p) sum += used(use, p);
      used_.push_back(sum);
    }
  }

  // All possible stage times, ascending: the candidates for the pace.
  std::vector<double> paces() const {
    std::vector<double> all;
    for (const DevicePool& pool : pools_)
      for (size_t i = 0; i < num_layers_; ++i)
        for (size_t j = i + 1; j <= num_layers_; ++j) all.push_back((time_[j] - time_[i]) * pool.slowness);
    std::sort(all.begin(), all.end());
    // Times that differ only by rounding are one pace, the larger.
    std::vector<double> few;
    for (const double one : all) {
      if (!few.empty() && one <= few.back() * (1 + 1e-12))
        few.back() = one;
      else
        few.push_back(one);
    }
    return few;
  }

  // The least sum with no stage slower than `pace`.
  Sum at_pace(double pace) {
    best_.assign((num_layers_ + 1) * num_uses_, Sum{});
    best_[0] = {0, 0};
    for (size_t use = 1; use < num_uses_; ++use) {
      const int k = used_[use] - 1;  // the added stage
      if (k >= stages_) continue;
      for (size_t j = static_cast<size_t>(k) + 1; j + static_cast<size_t>(stages_ - k - 1) <= num_layers_; ++j)
        for (size_t p = 0; p < pools_.size(); ++p) relax(use, k, j, p, pace);
    }
    Sum best;
    for (size_t use = 0; use < num_uses_; ++use)
      if (used_[use] == stages_) best = std::min(best, best_[num_layers_ * num_uses_ + use]);
    return best;
  }

  // The division with the least sum of the last walk.
  LayerDivision trace(double pace) {
    LayerDivision division;
    size_t use = 0, j = num_layers_;
    Sum least;
    for (size_t one = 0; one < num_uses_; ++one)
      if (used_[one] == stages_ && best_[j * num_uses_ + one] < least) least = best_[j * num_uses_ + one], use = one;
    for (int k = stages_ - 1; k >= 0; --k) {
      const auto [i, p] = step_back(use, k, j, pace);
      division.layers.push_back(static_cast<int>(j - i));
      division.pool.push_back(static_cast<int>(p));
      j = i;
      use -= strides_[p];
    }
    std::reverse(division.layers.begin(), division.layers.end());
    std::reverse(division.pool.begin(), division.pool.end());
    return division;
  }

 private:
  int used(size_t use, size_t p) const {
    return static_cast<int>(use / strides_[p] % (static_cast<size_t>(std::min(pools_[p].stages, stages_)) + 1));
  }
  bool holds(size_t i, size_t j, size_t p, int k) const {
    if (pools_[p].memory_bytes == 0) return true;
    const auto alive = static_cast<double>(std::min<int64_t>(stages_ - k, micro_batches_));
    return state_[j] - state_[i] + alive * (active_[j] - active_[i]) <= pools_[p].memory_bytes;
  }
  Sum joined(size_t use, int k, size_t i, size_t j, size_t p, double pace) const {
    const double time = (time_[j] - time_[i]) * pools_[p].slowness;
    const Sum& before = best_[i * num_uses_ + use - strides_[p]];
    if (before.time == kInfinite || time > pace || !holds(i, j, p, k)) return {};
    return {before.time + time, before.squares + time * time};
  }
  void relax(size_t use, int k, size_t j, size_t p, double pace) {
    if (used(use, p) == 0) return;
    Sum& best = best_[j * num_uses_ + use];
    for (size_t i = j; i-- > static_cast<size_t>(k);) {
      if ((time_[j] - time_[i]) * pools_[p].slowness > pace) break;  // longer ranges are slower still
      best = std::min(best, joined(use, k, i, j, p, pace));
    }
  }
  std::pair<size_t, size_t> step_back(size_t use, int k, size_t j, double pace) const {
    const Sum& here = best_[j * num_uses_ + use];
    for (size_t p = 0; p < pools_.size(); ++p) {
      if (used(use, p) == 0) continue;
      for (size_t i = j; i-- > static_cast<size_t>(k);) {
        const Sum sum = joined(use, k, i, j, p, pace);
        if (sum.time == here.time && sum.squares == here.squares) return {i, p};
      }
    }
    check_failed(__FILE__, __LINE__, "a step back", "a division that no walk made");
  }

  std::span<const DevicePool> pools_;
  size_t num_layers_;
  int stages_;
  int64_t micro_batches_;
  std::vector<double> time_{0}, state_{0}, active_{0};  // prefix sums
  std::vector<size_t> strides_;                         // of a use (the number of stages on each pool), mixed radix
  size_t num_uses_;
  std::vector<int> used_;  // stages over all pools
  std::vector<Sum> best_;  // [layers done][use]
};

}  // namespace

std::optional<LayerDivision> divide(std::span<const DivisionLayer> layers, int stages,
                                    std::span<const DevicePool> pools, int64_t micro_batches) {
  int room = 0;
  for (const DevicePool& pool : pools) room += pool.stages;
  if (stages < 1 || static_cast<size_t>(stages) > layers.size() || stages > room)
    throw UsageError(fmt::format("{} stages for {} layers on devices for {} stages: expected 1 to {}", stages,
                                 layers.size(), room, std::min<int64_t>(room, static_cast<int64_t>(layers.size()))));
  Walk walk(layers, stages, pools, micro_batches);
  const std::vector<double> paces = walk.paces();
  const auto waits = static_cast<double>(micro_batches - 1);
  // Feasibility is monotone in the pace: binary search finds the first feasible one; above it the sum only decreases.
  const auto first = std::partition_point(paces.begin(), paces.end(),
                                          [&](double pace) { return walk.at_pace(pace).time == kInfinite; });
  if (first == paces.end()) return std::nullopt;
  const double least_sum = walk.at_pace(paces.back()).time;
  double best = kInfinite, pace_of_best = 0;
  for (auto pace = first; pace != paces.end() && least_sum + waits * *pace < best; ++pace) {
    const double step = walk.at_pace(*pace).time + waits * *pace;
    if (step < best) best = step, pace_of_best = *pace;
  }
  walk.at_pace(pace_of_best);
  LayerDivision division = walk.trace(pace_of_best);
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
