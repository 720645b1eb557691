// Measured rates of this program's kernels and collectives on a CPU machine, from `espalier plan calibrate`: the
// figures of Cluster::measured by name, and the interpolation between them.
//
// Two configurations: `whole`, one rank with a thread on every core; `shared`, single-threaded ranks that keep all
// cores busy and share caches and memory bandwidth.
#pragma once

#include <array>
#include <string>
#include <string_view>
#include <vector>

#include "esp/plan/cluster.h"

namespace esp::plan {

class OwnRates {
 public:
  // Sizes at which GEMMs are measured; rates are interpolated between them and clamped outside.
  static constexpr std::array<int, 4> kRows = {32, 128, 512, 2048};
  static constexpr std::array<int, 4> kWidths = {32, 128, 512, 2048};
  static constexpr std::array<int, 3> kDepths = {32, 256, 1024};
  // Streaming kernels at a size within the second-level cache and one beyond all caches.
  static constexpr std::array<double, 2> kStreamBytes = {256e3, 48e6};

  // "forward" (A·B), "input" (A·Bᵀ), "weight" (C + Aᵀ·B).
  static std::string product_key(std::string_view way, std::string_view type, std::string_view kind, int m, int n,
                                 int k);
  static std::string stream_key(std::string_view way, std::string_view type, std::string_view kernel, double bytes);
  static std::string attention_key(std::string_view way, std::string_view type, std::string_view pass, int tokens);
  static constexpr std::array<int, 3> kTokens = {32, 128, 512};
  static std::string collective_key(std::string_view op, int ranks, std::string_view what);  // alpha_s, bytes_per_s

  // For steps with this many ranks (two; more than that by four): kernel time in a step over kernels timed alone, and
  // meet_s. Files from before this measurement have neither.
  static std::string company_key(int ranks);
  static std::string meet_key(int ranks);

  static bool known(const Cluster& cluster);  // whether the cluster is calibrated

  // UsageError names the missing figure.
  OwnRates(const Cluster& cluster, std::string type, int ranks);

  int cores() const { return cores_; }
  int threads() const { return threads_; }  // of a rank
  double gemm_s(std::string_view kind, double m, double n, double k) const;
  double stream_s(std::string_view kernel, double bytes) const;  // bytes read and written
  double attention_s(std::string_view pass, double flops, double tokens) const;
  // Additional time of a call of ranks that also compute: their partners must be woken and scheduled.
  double meet_s() const { return meet_s_; }
  double kernel_s() const { return kernel_s_; }  // of any kernel: its share of walking the tape
  double step_s() const { return step_s_; }
  // A call of `ranks` of the job's ranks over `bytes` of the whole buffer: fixed seconds, and bytes/s.
  struct Line {
    double alpha_s = 0, bytes_per_s = 0;
    double time_s(double bytes) const { return alpha_s + bytes / bytes_per_s; }
  };
  Line line(std::string_view op, int ranks) const;

 private:
  double figure(const std::string& key) const;

  const Cluster& cluster_;
  const std::string type_;
  const int ranks_;
  int cores_ = 1, threads_ = 1;
  std::string way_;
  double kernel_s_ = 0, step_s_ = 0, company_ = 1, meet_s_ = 0;
};

}  // namespace esp::plan
