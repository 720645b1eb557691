#include "esp/plan/simulate/failures.h"

#include <algorithm>
#include <cmath>
#include <limits>

#include "esp/base/rng.h"

namespace esp::plan {
namespace {

class Failures {
 public:
  Failures(double mtbf_s, uint64_t seed) : mtbf_s_(mtbf_s), seed_(seed) {}
  // Seconds to the next failure: memoryless, so it may be drawn at any time.
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

Goodput drawn_goodput(const FailureModel& model, double interval_s, double work_s, uint64_t seed) {
  Failures failures(model.mtbf_s, seed);
  double kept = 0, writing = 0, lost = 0, restarting = 0, num_failures = 0;
  double left = failures.next();  // until the next failure
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
      ++num_failures;
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
