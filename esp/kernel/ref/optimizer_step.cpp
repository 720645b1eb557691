#include "esp/kernel/optimizer_step.h"

#include <cmath>
#include <utility>
#include <vector>

#include "esp/kernel/floating.h"
#include "esp/kernel/split_master.h"

namespace esp::kernel::ref {
namespace {

// Calls f(buffers) with a full master copy. A split master copy is joined before the call and split after it.
template <typename F>
void with_master(StepBuffers buffers, F&& f) {
  std::vector<float> master(static_cast<size_t>(buffers.count));
  join_master_weights(master.data(), buffers.weights, buffers.lower, buffers.count, {});
  uint16_t* const lower = std::exchange(buffers.lower, nullptr);
  buffers.master = master.data();
  f(buffers);
  split_master_weights(lower, master.data(), buffers.count, {});
}

}  // namespace

void adam_step(const StepBuffers& buffers, const AdamStep& step) {
  if (buffers.lower) return with_master(buffers, [&](const StepBuffers& whole) { ref::adam_step(whole, step); });
  const double correction1 = 1 - std::pow(step.beta1, static_cast<double>(step.t));
  const double correction2 = 1 - std::pow(step.beta2, static_cast<double>(step.t));
  with_floating(buffers.grad_type, [&]<typename T>(std::type_identity<T>) {
    using A = Accumulator<T>;
    for (int64_t i = 0; i < buffers.count; ++i) {
      A &w = static_cast<A*>(buffers.master)[i], &m = static_cast<A*>(buffers.m)[i], &v = static_cast<A*>(buffers.v)[i];
      double g = static_cast<A>(static_cast<const T*>(buffers.grad)[i]) * step.grad_scale;
      if (!step.decoupled) g += step.weight_decay * w;
      m = static_cast<A>(step.beta1 * m + (1 - step.beta1) * g);
      v = static_cast<A>(step.beta2 * v + (1 - step.beta2) * g * g);
      double change = (m / correction1) / (std::sqrt(v / correction2) + step.eps);
      if (step.decoupled) change += step.weight_decay * w;
      w = static_cast<A>(w - step.lr * change);
      if (buffers.weights) static_cast<T*>(buffers.weights)[i] = static_cast<T>(w);
    }
  });
}

void sgd_step(const StepBuffers& buffers, const SgdStep& step) {
  if (buffers.lower) return with_master(buffers, [&](const StepBuffers& whole) { ref::sgd_step(whole, step); });
  with_floating(buffers.grad_type, [&]<typename T>(std::type_identity<T>) {
    using A = Accumulator<T>;
    for (int64_t i = 0; i < buffers.count; ++i) {
      A& w = static_cast<A*>(buffers.master)[i];
      double g = static_cast<A>(static_cast<const T*>(buffers.grad)[i]) * step.grad_scale + step.weight_decay * w;
      if (step.momentum != 0) {
        A& u = static_cast<A*>(buffers.m)[i];
        u = static_cast<A>(step.momentum * u + g);
        g = step.nesterov ? g + step.momentum * u : double{u};
      }
      w = static_cast<A>(w - step.lr * g);
      if (buffers.weights) static_cast<T*>(buffers.weights)[i] = static_cast<T>(w);
    }
  });
}

}  // namespace esp::kernel::ref
