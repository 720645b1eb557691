// Rates of Espalier's kernels and collectives on a CPU machine, measured by `espalier plan calibrate`: the keys of
// Cluster::measured, and the interpolation between measured sizes.
//
// Kernels are measured in two modes. `whole`: one rank with a thread on every core. `shared`: single-threaded ranks
// that keep all cores busy and share caches and memory bandwidth.
#pragma once

#include <array>
#include <string>
#include <string_view>
#include <vector>

#include "esp/plan/cluster.h"

namespace esp::plan {

class CalibratedRates {
 public:
  // Numbers of rows (m) at which GEMMs are measured. Rates are interpolated between these sizes and clamped outside.
  static constexpr std::array<int, 4> kRows = {32, 128, 512, 2048};
  static constexpr std::array<int, 4> kWidths = {32, 128, 512, 2048};
  static constexpr std::array<int, 3> kDepths = {32, 256, 1024};
  // Data sizes in bytes at which elementwise kernels are measured: one size fits into the L2 cache, the other is larger
  // than all caches.
  static constexpr std::array<double, 2> kStreamBytes = {256e3, 48e6};

  // `kind`: "forward" (A·B), "input" (A·Bᵀ), "weight" (C + Aᵀ·B).
  static std::string gemm_key(std::string_view mode, std::string_view type, std::string_view kind, int m, int n, int k);
  static std::string stream_key(std::string_view mode, std::string_view type, std::string_view kernel, double bytes);
  static std::string attention_key(std::string_view mode, std::string_view type, std::string_view pass, int tokens);
  static constexpr std::array<int, 3> kTokens = {32, 128, 512};
  // Key of one number of a collective. `what`: "alpha_s" (seconds per call) or "bytes_per_s".
  static std::string collective_key(std::string_view op, int ranks, std::string_view what);

  // Optional keys, measured with 2 and with 4 ranks; the figures of 4 ranks apply to larger numbers too. contention:
  // kernel time within a training step / time of the same kernels alone (default 1). wakeup: see wakeup_s() (default
  // 0).
  static std::string contention_key(int ranks);
  static std::string wakeup_key(int ranks);

  static bool is_calibrated(const Cluster& cluster);  // whether the cluster has measured rates

  // Selects the rates for a data type and a number of ranks. UsageError names a missing measurement.
  CalibratedRates(const Cluster& cluster, std::string type, int ranks);

  int cores() const { return cores_; }
  int threads() const { return threads_; }  // threads per rank
  double gemm_s(std::string_view kind, double m, double n, double k) const;
  double stream_s(std::string_view kernel, double bytes) const;  // bytes: read plus written
  double attention_s(std::string_view pass, double flops, double tokens) const;
  // Extra seconds of each collective call in a training step: ranks that wait must first be woken and scheduled.
  double wakeup_s() const { return wakeup_s_; }
  double kernel_s() const { return kernel_s_; }  // autograd overhead per kernel, seconds
  double step_s() const { return step_s_; }
  // Cost of one collective of `ranks` ranks over a buffer of `bytes` bytes: alpha_s + bytes / bytes_per_s.
  struct CallCost {
    double alpha_s = 0, bytes_per_s = 0;
    double time_s(double bytes) const { return alpha_s + bytes / bytes_per_s; }
  };
  CallCost call_cost(std::string_view op, int ranks) const;

 private:
  double measurement(const std::string& key) const;

  const Cluster& cluster_;
  const std::string type_;
  const int ranks_;
  int cores_ = 1, threads_ = 1;
  std::string mode_;
  double kernel_s_ = 0, step_s_ = 0, contention_ = 1, wakeup_s_ = 0;
};

}  // namespace esp::plan
