#include "esp/plan/calibrated_rates.h"

#include <algorithm>
#include <cmath>

#include <fmt/format.h>

#include "esp/base/error.h"

namespace esp::plan {
namespace {

// Position of x between two neighbouring measured sizes (`low`, `high`), on a logarithmic scale. Clamped at the ends of
// the ascending list.
struct GridPosition {
  size_t low = 0, high = 0;
  double weight = 0;  // weight of entry `high`; entry `low` has weight 1 − weight
};

template <typename T, size_t N>
GridPosition grid_position(const std::array<T, N>& list, double x) {
  if (x <= static_cast<double>(list.front())) return {0, 0, 0};
  if (x >= static_cast<double>(list.back())) return {N - 1, N - 1, 0};
  size_t high = 1;
  while (static_cast<double>(list[high]) < x) ++high;
  const double a = std::log(static_cast<double>(list[high - 1])), b = std::log(static_cast<double>(list[high]));
  return {high - 1, high, (std::log(x) - a) / (b - a)};
}

}  // namespace

std::string CalibratedRates::gemm_key(std::string_view mode, std::string_view type, std::string_view kind, int m, int n,
                                      int k) {
  return fmt::format("{}.{}.{}.{}x{}x{}", mode, type, kind, m, n, k);
}
std::string CalibratedRates::stream_key(std::string_view mode, std::string_view type, std::string_view kernel,
                                        double bytes) {
  return fmt::format("{}.{}.{}.{:.0f}", mode, type, kernel, bytes);
}
std::string CalibratedRates::attention_key(std::string_view mode, std::string_view type, std::string_view pass,
                                           int tokens) {
  return fmt::format("{}.{}.attention_{}.{}", mode, type, pass, tokens);
}
std::string CalibratedRates::collective_key(std::string_view op, int ranks, std::string_view what) {
  return fmt::format("{}.{}.{}", op, ranks, what);
}

std::string CalibratedRates::contention_key(int ranks) {
  return fmt::format("company.{}", ranks > 2 ? 4 : 2);
}
std::string CalibratedRates::wakeup_key(int ranks) {
  return fmt::format("meet_s.{}", ranks > 2 ? 4 : 2);
}

bool CalibratedRates::is_calibrated(const Cluster& cluster) {
  return cluster.measured.contains("cores");
}

CalibratedRates::CalibratedRates(const Cluster& cluster, std::string type, int ranks)
    : cluster_(cluster), type_(std::move(type)), ranks_(ranks) {
  cores_ = static_cast<int>(measurement("cores"));
  threads_ = std::max(1, cores_ / std::max(1, ranks));
  mode_ = threads_ > 1 ? "whole" : "shared";
  kernel_s_ = measurement(mode_ + ".kernel_s");
  step_s_ = measurement("step_s");
  if (ranks > 1) {
    const auto found = [&](const std::string& key, double otherwise) {
      const auto at = cluster.measured.find(key);
      return at == cluster.measured.end() ? otherwise : at->second;
    };
    contention_ = found(contention_key(ranks), 1);
    wakeup_s_ = found(wakeup_key(ranks), 0);
  }
}

double CalibratedRates::measurement(const std::string& key) const {
  const auto found = cluster_.measured.find(key);
  if (found == cluster_.measured.end())
    throw UsageError(fmt::format(
        "cluster {}: [measured] has no \"{}\". Measure again: espalier plan calibrate --out FILE", cluster_.name, key));
  return found->second;
}

double CalibratedRates::gemm_s(std::string_view kind, double m, double n, double k) const {
  if (m <= 0 || n <= 0 || k <= 0) return 0;
  const GridPosition at[] = {grid_position(kRows, m), grid_position(kWidths, n), grid_position(kDepths, k)};
  double rate = 0;
  for (int corner = 0; corner < 8; ++corner) {
    double weight = 1;
    size_t index[3];
    for (size_t d = 0; d < 3; ++d) {
      const bool high = (corner >> d & 1) != 0;
      weight *= high ? at[d].weight : 1 - at[d].weight;
      index[d] = high ? at[d].high : at[d].low;
    }
    if (weight > 0)
      rate +=
          weight *
          std::log(measurement(gemm_key(mode_, type_, kind, kRows[index[0]], kWidths[index[1]], kDepths[index[2]])));
  }
  return contention_ * 2 * m * n * k / std::exp(rate);
}

double CalibratedRates::stream_s(std::string_view kernel, double bytes) const {
  if (bytes <= 0) return 0;
  const GridPosition at = grid_position(kStreamBytes, bytes);
  const double low = measurement(stream_key(mode_, type_, kernel, kStreamBytes[at.low])),
               high = measurement(stream_key(mode_, type_, kernel, kStreamBytes[at.high]));
  return contention_ * bytes / std::exp(std::log(low) * (1 - at.weight) + std::log(high) * at.weight);
}

double CalibratedRates::attention_s(std::string_view pass, double flops, double tokens) const {
  const GridPosition at = grid_position(kTokens, tokens);
  const double low = measurement(attention_key(mode_, type_, pass, kTokens[at.low])),
               high = measurement(attention_key(mode_, type_, pass, kTokens[at.high]));
  return contention_ * flops / std::exp(std::log(low) * (1 - at.weight) + std::log(high) * at.weight);
}

// All groups of a job call at the same time and share the cores. So two groups of two ranks on two cores are as slow as
// one group of four.
CalibratedRates::CallCost CalibratedRates::call_cost(std::string_view op, int ranks) const {
  if (ranks <= 1) return {0, 1e30};
  const int busy = std::max(ranks, ranks_) > 2 ? 4 : 2;
  const CallCost all{measurement(collective_key(op, busy, "alpha_s")),
                     measurement(collective_key(op, busy, "bytes_per_s"))};
  if (busy == ranks || ranks > busy) {
    // If the job has more ranks than were measured, they share the cores: the time per byte and per call grows in
    // proportion.
    const double more = ranks > busy ? static_cast<double>(ranks) / busy : 1;
    return {all.alpha_s * more, all.bytes_per_s / more};
  }
  const CallCost few{measurement(collective_key(op, 2, "alpha_s")), measurement(collective_key(op, 2, "bytes_per_s"))};
  const double turns = std::max(1.0, static_cast<double>(ranks_) / cores_);
  return {few.alpha_s * turns, few.bytes_per_s / turns};
}

}  // namespace esp::plan
