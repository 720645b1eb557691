#include "esp/plan/own_rates.h"

#include <algorithm>
#include <cmath>

#include <fmt/format.h>

#include "esp/base/error.h"

namespace esp::plan {
namespace {

// Position of x between neighbouring entries of an ascending list, on a logarithmic scale; clamped at the ends.
struct Between {
  size_t low = 0, high = 0;
  double weight = 0;  // of the upper entry
};

template <typename T, size_t N>
Between between(const std::array<T, N>& list, double x) {
  if (x <= static_cast<double>(list.front())) return {0, 0, 0};
  if (x >= static_cast<double>(list.back())) return {N - 1, N - 1, 0};
  size_t high = 1;
  while (static_cast<double>(list[high]) < x) ++high;
  const double a = std::log(static_cast<double>(list[high - 1])), b = std::log(static_cast<double>(list[high]));
  return {high - 1, high, (std::log(x) - a) / (b - a)};
}

}  // namespace

std::string OwnRates::product_key(std::string_view way, std::string_view type, std::string_view kind, int m, int n,
                                  int k) {
  return fmt::format("{}.{}.{}.{}x{}x{}", way, type, kind, m, n, k);
}
std::string OwnRates::stream_key(std::string_view way, std::string_view type, std::string_view kernel, double bytes) {
  return fmt::format("{}.{}.{}.{:.0f}", way, type, kernel, bytes);
}
std::string OwnRates::attention_key(std::string_view way, std::string_view type, std::string_view pass, int tokens) {
  return fmt::format("{}.{}.attention_{}.{}", way, type, pass, tokens);
}
std::string OwnRates::collective_key(std::string_view op, int ranks, std::string_view what) {
  return fmt::format("{}.{}.{}", op, ranks, what);
}

std::string OwnRates::company_key(int ranks) {
  return fmt::format("company.{}", ranks > 2 ? 4 : 2);
}
std::string OwnRates::meet_key(int ranks) {
  return fmt::format("meet_s.{}", ranks > 2 ? 4 : 2);
}

bool OwnRates::known(const Cluster& cluster) {
  return cluster.measured.contains("cores");
}

OwnRates::OwnRates(const Cluster& cluster, std::string type, int ranks)
    : cluster_(cluster), type_(std::move(type)), ranks_(ranks) {
  cores_ = static_cast<int>(figure("cores"));
  threads_ = std::max(1, cores_ / std::max(1, ranks));
  way_ = threads_ > 1 ? "whole" : "shared";
  kernel_s_ = figure(way_ + ".kernel_s");
  step_s_ = figure("step_s");
  if (ranks > 1) {
    const auto found = [&](const std::string& key, double otherwise) {
      const auto at = cluster.measured.find(key);
      return at == cluster.measured.end() ? otherwise : at->second;
    };
    company_ = found(company_key(ranks), 1);
    meet_s_ = found(meet_key(ranks), 0);
  }
}

double OwnRates::figure(const std::string& key) const {
  const auto found = cluster_.measured.find(key);
  if (found == cluster_.measured.end())
    throw UsageError(
        fmt::format("cluster {}: \"{}\" is not measured. Run espalier plan calibrate --out FILE", cluster_.name, key));
  return found->second;
}

double OwnRates::gemm_s(std::string_view kind, double m, double n, double k) const {
  if (m <= 0 || n <= 0 || k <= 0) return 0;
  const Between at[] = {between(kRows, m), between(kWidths, n), between(kDepths, k)};
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
      rate += weight *
              std::log(figure(product_key(way_, type_, kind, kRows[index[0]], kWidths[index[1]], kDepths[index[2]])));
  }
  return company_ * 2 * m * n * k / std::exp(rate);
}

double OwnRates::stream_s(std::string_view kernel, double bytes) const {
  if (bytes <= 0) return 0;
  const Between at = between(kStreamBytes, bytes);
  const double low = figure(stream_key(way_, type_, kernel, kStreamBytes[at.low])),
               high = figure(stream_key(way_, type_, kernel, kStreamBytes[at.high]));
  return company_ * bytes / std::exp(std::log(low) * (1 - at.weight) + std::log(high) * at.weight);
}

double OwnRates::attention_s(std::string_view pass, double flops, double tokens) const {
  const Between at = between(kTokens, tokens);
  const double low = figure(attention_key(way_, type_, pass, kTokens[at.low])),
               high = figure(attention_key(way_, type_, pass, kTokens[at.high]));
  return company_ * flops / std::exp(std::log(low) * (1 - at.weight) + std::log(high) * at.weight);
}

// Groups of one job call at once: two groups of two on two cores are as slow as four ranks.
OwnRates::Line OwnRates::line(std::string_view op, int ranks) const {
  if (ranks <= 1) return {0, 1e30};
  const int busy = std::max(ranks, ranks_) > 2 ? 4 : 2;
  const Line all{figure(collective_key(op, busy, "alpha_s")), figure(collective_key(op, busy, "bytes_per_s"))};
  if (busy == ranks || ranks > busy) {
    // More ranks than were measured share the cores: time per byte and per call grows accordingly.
    const double more = ranks > busy ? static_cast<double>(ranks) / busy : 1;
    return {all.alpha_s * more, all.bytes_per_s / more};
  }
  const Line few{figure(collective_key(op, 2, "alpha_s")), figure(collective_key(op, 2, "bytes_per_s"))};
  const double turns = std::max(1.0, static_cast<double>(ranks_) / cores_);
  return {few.alpha_s * turns, few.bytes_per_s / turns};
}

}  // namespace esp::plan
