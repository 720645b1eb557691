// What this program's own kernels and collectives reach on a CPU machine, as `espalier plan calibrate` measured them:
// the figures of Cluster::measured by name, and the interpolation between them.
//
// Two ways of running are told apart: `whole`, one rank with a thread on every core; `shared`, ranks of one thread that
// keep all cores busy at once, where caches and memory are everyone's.
#pragma once

#include <array>
#include <string>
#include <string_view>
#include <vector>

#include "esp/plan/cluster.h"

namespace esp::plan {

class OwnRates {
 public:
  // Sizes at which products are measured; between them rates are interpolated, beyond they stay.
  static constexpr std::array<int, 4> kRows = {32, 128, 512, 2048};
  static constexpr std::array<int, 4> kWidths = {32, 128, 512, 2048};
  static constexpr std::array<int, 3> kDepths = {32, 256, 1024};
  // Streaming kernels at a size within the second-level cache and one beyond all.
  static constexpr std::array<double, 2> kStreamBytes = {256e3, 48e6};

  // "forward" (A·B), "input" (A·Bᵀ), "weight" (C + Aᵀ·B).
  static std::string product_key(std::string_view way, std::string_view type, std::string_view kind, int m, int n,
                                 int k);
  static std::string stream_key(std::string_view way, std::string_view type, std::string_view kernel, double bytes);
  static std::string attention_key(std::string_view way, std::string_view type, std::string_view pass, int tokens);
  static constexpr std::array<int, 3> kTokens = {32, 128, 512};
  static std::string collective_key(std::string_view op, int ranks, std::string_view what);  // alpha_s, bytes_per_s

  // Of steps with so many ranks (two; more than that by four): kernels in a step over kernels timed one by one, and
  // meet_s. Files written before these were measured have neither.
  static std::string company_key(int ranks);
  static std::string meet_key(int ranks);

  static bool known(const Cluster& cluster);  // whether it has been calibrated

  // UsageError names the figure that is missing.
  OwnRates(const Cluster& cluster, std::string type, int ranks);

  int cores() const { return cores_; }
  int threads() const { return threads_; }  // of a rank
  double product_s(std::string_view kind, double m, double n, double k) const;
  double stream_s(std::string_view kernel, double bytes) const;  // bytes read and written
  double attention_s(std::string_view pass, double flops, double tokens) const;
  // A call of ranks that compute meanwhile, beyond one of ranks that do nothing else: partners must be woken and get a
  // core.
  double meet_s() const { return meet_s_; }
  double kernel_s() const { return kernel_s_; }  // of any kernel: its share of walking the tape
  double step_s() const { return step_s_; }
  // A call of `ranks` of the job's ranks over `bytes` of the whole buffer: seconds before bytes count, bytes/s.
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
