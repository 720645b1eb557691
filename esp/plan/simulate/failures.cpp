#include "esp/plan/simulate/failures.h"

#include <algorithm>
#include <cmath>
#include <limits>

#include <fmt/format.h>

#include "esp/base/error.h"
#include "esp/base/rng.h"

namespace esp::plan {
namespace {

constexpr double kMaxFailures = 1e7;  // a job that fails more often makes no progress worth simulating

class FailureProcess {
 public:
  FailureProcess(double mtbf_s, uint64_t seed) : mtbf_s_(mtbf_s), seed_(seed) {}
  // Random seconds to the next failure. Failures are memoryless, so a new time may be drawn at any moment.
  double next() {
    if (mtbf_s_ <= 0) return std::numeric_limits<double>::infinity();
    const double u = (static_cast<double>(random_bits(seed_, 0x6661696c, drawn_++) >> 11) + 0.5) * 0x1p-53;
    return -mtbf_s_ * std::log(u);
  }

 private:
  const double mtbf_s_;
  const uint64_t seed_;
  uint64_t drawn_ = 0;
};

}  // namespace

double young_interval_s(const FailureModel& model) {
  return std::sqrt(2 * model.checkpoint_s * model.mtbf_s);
}

double daly_interval_s(const FailureModel& model) {
  const double d = model.checkpoint_s, m = model.mtbf_s;
  if (d >= 2 * m) return m;
  const double x = std::sqrt(d / (2 * m));
  return std::sqrt(2 * d * m) * (1 + x / 3 + x * x / 9) - d;
}

double expected_goodput(const FailureModel& model, double interval_s) {
  if (model.mtbf_s <= 0) return interval_s / (interval_s + model.checkpoint_s);
  const double m = model.mtbf_s;
  return interval_s / (m * std::exp(model.restart_s / m) * std::expm1((interval_s + model.checkpoint_s) / m));
}

Goodput simulate_goodput(const FailureModel& model, double interval_s, double work_s, uint64_t seed) {
  FailureProcess failures(model.mtbf_s, seed);
  double kept = 0, writing = 0, lost = 0, restarting = 0, num_failures = 0;
  double left = failures.next();  // seconds until the next failure
  while (kept < work_s) {
    const double work = std::min(interval_s, work_s - kept), whole = work + model.checkpoint_s;
    if (left >= whole) {
      kept += work;
      writing += model.checkpoint_s;
      left -= whole;
      continue;
    }
    lost += left;
    for (bool up = false; !up;) {
      if (++num_failures > kMaxFailures)
        throw UsageError(
            fmt::format("failures: got a mean time of {:g} s between failures of the job, restarts of {:g} s and a "
                        "checkpoint every {:g} s; the job makes almost no progress. Use a longer --mtbf, a shorter "
                        "--restart-s or a shorter checkpoint interval",
                        model.mtbf_s, model.restart_s, interval_s));
      left = failures.next();
      up = left >= model.restart_s;
      restarting += up ? model.restart_s : left;
      if (up) left -= model.restart_s;
    }
  }
  const double all = kept + writing + lost + restarting;
  return {kept / all, num_failures / all * 86400, writing / all, lost / all, restarting / all};
}

}  // namespace esp::plan
