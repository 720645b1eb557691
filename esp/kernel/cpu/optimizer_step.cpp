// Optimizer steps: every buffer is read once and written once, and all arithmetic is in registers.
//
// A moment m is updated as m += (1 − β)·(g − m). The formula β·m + (1 − β)·g is mathematically equal, but it would
// multiply by the rounded β in every step (0.999 in float has an error of 1e-8), and the error would accumulate.
#include "esp/kernel/optimizer_step.h"
#include "esp/kernel/cuda_dispatch.h"
#include "esp/kernel/split_master.h"

#include <algorithm>
#include <cmath>

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "esp/kernel/cpu/optimizer_step.cpp"
#include <hwy/foreach_target.h>
// Includes below this line must follow hwy/foreach_target.h.
#include "esp/kernel/cpu/elements-inl.h"

HWY_BEFORE_NAMESPACE();
namespace esp::kernel::HWY_NAMESPACE {

template <typename T, bool kWeights>
void adam(const StepBuffers& buffers, const AdamStep& step) {
  using A = Accumulator<T>;
  const Tag<T> d;
  auto constant = [d](double value) HWY_ATTR { return hn::Set(d, static_cast<A>(value)); };
  const double t = static_cast<double>(step.t);
  const auto toward1 = constant(1 - step.beta1), toward2 = constant(1 - step.beta2);
  const auto rate = constant(step.lr / (1 - std::pow(step.beta1, t)));
  const auto root = constant(1 / std::sqrt(1 - std::pow(step.beta2, t)));
  const auto eps = constant(step.eps), grad_scale = constant(step.grad_scale);
  const auto decay = constant(step.decoupled ? step.lr * step.weight_decay : 0);
  const auto l2 = constant(step.decoupled ? 0 : step.weight_decay);
  A *master = static_cast<A*>(buffers.master), *ms = static_cast<A*>(buffers.m), *vs = static_cast<A*>(buffers.v);
  T* weights = static_cast<T*>(buffers.weights);
  const T* grad = static_cast<const T*>(buffers.grad);
  each_vector<T>(buffers.count, [=](auto lanes, int64_t i) HWY_ATTR {
    const auto w = lanes.load(master + i), m = lanes.load(ms + i), v = lanes.load(vs + i);
    const auto g = hn::MulAdd(l2, w, hn::Mul(lanes.load(grad + i), grad_scale));
    const auto m_new = hn::MulAdd(toward1, hn::Sub(g, m), m);
    const auto v_new = hn::MulAdd(toward2, hn::MulSub(g, g, v), v);
    const auto denominator = hn::MulAdd(hn::Sqrt(v_new), root, eps);
    const auto change = hn::MulAdd(decay, w, hn::Div(hn::Mul(rate, m_new), denominator));
    const auto w_new = hn::Sub(w, change);
    lanes.store(m_new, ms + i);
    lanes.store(v_new, vs + i);
    lanes.store(w_new, master + i);
    if constexpr (kWeights) lanes.store(w_new, weights + i);
  });
}

template <typename T, bool kWeights, bool kMomentum>
void sgd(const StepBuffers& buffers, const SgdStep& step) {
  using A = Accumulator<T>;
  const Tag<T> d;
  auto constant = [d](double value) HWY_ATTR { return hn::Set(d, static_cast<A>(value)); };
  const auto rate = constant(step.lr), momentum = constant(step.momentum), decay = constant(step.weight_decay);
  const auto grad_scale = constant(step.grad_scale);
  const bool nesterov = step.nesterov;
  A *master = static_cast<A*>(buffers.master), *us = static_cast<A*>(buffers.m);
  T* weights = static_cast<T*>(buffers.weights);
  const T* grad = static_cast<const T*>(buffers.grad);
  each_vector<T>(buffers.count, [=](auto lanes, int64_t i) HWY_ATTR {
    const auto w = lanes.load(master + i);
    auto g = hn::MulAdd(decay, w, hn::Mul(lanes.load(grad + i), grad_scale));
    if constexpr (kMomentum) {
      const auto u = hn::MulAdd(momentum, lanes.load(us + i), g);
      lanes.store(u, us + i);
      g = nesterov ? hn::MulAdd(momentum, u, g) : u;
    }
    const auto w_new = hn::NegMulAdd(rate, g, w);
    lanes.store(w_new, master + i);
    if constexpr (kWeights) lanes.store(w_new, weights + i);
  });
}

void adam_range(const StepBuffers& buffers, const AdamStep& step) {
  with_floating(buffers.grad_type, [&]<typename T>(std::type_identity<T>) {
    buffers.weights ? adam<T, true>(buffers, step) : adam<T, false>(buffers, step);
  });
}

void sgd_range(const StepBuffers& buffers, const SgdStep& step) {
  with_floating(buffers.grad_type, [&]<typename T>(std::type_identity<T>) {
    if (step.momentum != 0)
      buffers.weights ? sgd<T, true, true>(buffers, step) : sgd<T, false, true>(buffers, step);
    else
      buffers.weights ? sgd<T, true, false>(buffers, step) : sgd<T, false, false>(buffers, step);
  });
}

}  // namespace esp::kernel::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace esp::kernel {
namespace {

StepBuffers piece_of(const StepBuffers& whole, int64_t begin, int64_t end) {
  const DType state = accumulator_of(whole.grad_type);
  return {.master = at(whole.master, begin, state),
          .weights = at(whole.weights, begin, whole.grad_type),
          .grad = at(whole.grad, begin, whole.grad_type),
          .m = at(whole.m, begin, state),
          .v = at(whole.v, begin, state),
          .count = end - begin,
          .grad_type = whole.grad_type,
          .lower = whole.lower ? whole.lower + begin : nullptr};
}

// Calls f(buffers) for elements [begin, end). A split master copy is processed in small chunks: joined before f, split
// after it.
template <typename F>
void with_master(const StepBuffers& whole, int64_t begin, int64_t end, F&& f) {
  if (!whole.lower) return f(piece_of(whole, begin, end));
  constexpr int64_t kAtOnce = 1024;
  alignas(64) float master[kAtOnce];
  for (; begin < end; begin += kAtOnce) {
    StepBuffers piece = piece_of(whole, begin, std::min(end, begin + kAtOnce));
    join_master_weights(master, piece.weights, piece.lower, piece.count, {});
    piece.master = master;
    f(piece);
    split_master_weights(piece.lower, master, piece.count, {});
  }
}

void check_split_master(const StepBuffers& buffers) {
  ESP_CHECK(!buffers.lower || (buffers.grad_type == DType::bf16 && buffers.weights),
            "split master copy: got dtype {}, {} weights buffer; expected dtype bf16, a weights buffer",
            name_of(buffers.grad_type), buffers.weights ? "a" : "no");
}

}  // namespace

HWY_EXPORT(adam_range);
HWY_EXPORT(sgd_range);

void adam_step(const StepBuffers& buffers, const AdamStep& step, const device::Stream& stream) {
  if (is_cuda(stream)) return cuda::adam_step(buffers, step, stream);
  ESP_CHECK(step.t >= 1, "Adam step number: got {}; must be >= 1", step.t);
  check_split_master(buffers);
  const auto piece = HWY_DYNAMIC_DISPATCH(adam_range);
  device::parallel_for(stream, buffers.count, kElementGrain, [&](int64_t begin, int64_t end) {
    with_master(buffers, begin, end, [&](const StepBuffers& some) { piece(some, step); });
  });
}

void sgd_step(const StepBuffers& buffers, const SgdStep& step, const device::Stream& stream) {
  if (is_cuda(stream)) return cuda::sgd_step(buffers, step, stream);
  ESP_CHECK(step.momentum == 0 || buffers.m, "SGD: got momentum {} and no buffer `m`; expected a buffer, or momentum 0",
            step.momentum);
  check_split_master(buffers);
  const auto piece = HWY_DYNAMIC_DISPATCH(sgd_range);
  device::parallel_for(stream, buffers.count, kElementGrain, [&](int64_t begin, int64_t end) {
    with_master(buffers, begin, end, [&](const StepBuffers& some) { piece(some, step); });
  });
}

}  // namespace esp::kernel
#endif
