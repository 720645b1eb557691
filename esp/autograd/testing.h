// Gradients against central differences in fp64, for tests of functions and of layers.
#pragma once

#include <cmath>
#include <functional>
#include <vector>

#include "esp/autograd/tape.h"
#include "esp/base/rng.h"
#include "esp/kernel/elementwise.h"

namespace esp::autograd {

// A tape with its memory and threads.
struct Rig {
  device::MemoryAccount account;
  device::MemoryPool pool{account};
  device::ThreadPool threads;
  tensor::Context context;
  Tape tape;

  explicit Rig(int num_threads = 1) : threads(num_threads), context{{{}, &threads, nullptr}, &pool}, tape(context) {}

  tensor::Tensor random(const tensor::Shape& shape, uint64_t seed, double scale = 1, DType dtype = DType::f64) {
    tensor::Tensor x = tensor::empty(context, shape, dtype, device::MemoryCategory::other);
    kernel::fill_normal(x.data(), 0, scale, seed, 0, 0, x.count(), dtype, context.stream);
    return x;
  }
  void fill(Weight& weight, const tensor::Shape& shape, uint64_t seed, double scale = 1, DType dtype = DType::f64) {
    weight.value = random(shape, seed, scale, dtype);
    weight.trained = true;
    weight.grad = tensor::zeros(context, shape, dtype, device::MemoryCategory::gradient);
  }
  tensor::Tensor ids(const tensor::Shape& shape, std::vector<int32_t> values) {
    tensor::Tensor x = tensor::empty(context, shape, DType::i32, device::MemoryCategory::other);
    std::copy(values.begin(), values.end(), x.as<int32_t>());
    return x;
  }
};

// Relative L2 distance.
inline double distance(std::span<const double> a, std::span<const double> b) {
  double apart = 0, size = 0;
  for (size_t i = 0; i < a.size(); ++i) {
    apart += (a[i] - b[i]) * (a[i] - b[i]);
    size += b[i] * b[i];
  }
  return size == 0 ? std::sqrt(apart) : std::sqrt(apart / size);
}

// ∂value/∂x by central differences, element by element; value() reads x.
inline std::vector<double> differences(const tensor::Tensor& x, const std::function<double()>& value) {
  std::vector<double> slopes;
  for (double& element : x.span<double>()) {
    const double before = element, step = 1e-5 * std::max(1.0, std::abs(before));
    element = before + step;
    const double above = value();
    element = before - step;
    const double below = value();
    element = before;
    slopes.push_back((above - below) / (2 * step));
  }
  return slopes;
}

// Maps inputs to outputs on the tape. Its loss is Σ outputs∘probes with random probes.
using Function = std::function<std::vector<Variable>(Tape&, const std::vector<Variable>&)>;

// The largest relative distance between gradient and difference over all inputs and weights. Weight gradients start at
// some value and must be added to.
inline double worst_gradient(Rig& rig, const Function& f, const std::vector<tensor::Tensor>& inputs,
                             const std::vector<Weight*>& weights) {
  const auto value = [&] {
    const NoRecording quiet(rig.tape);
    double sum = 0;
    uint64_t seed = 1000;
    for (const Variable& y : f(rig.tape, {inputs.begin(), inputs.end()})) {
      const tensor::Tensor probe = rig.random(y.shape(), seed++);
      for (int64_t i = 0; i < probe.count(); ++i) sum += probe.as<double>()[i] * y.value().as<double>()[i];
    }
    return sum;
  };
  constexpr double kBefore = 0.5;
  for (Weight* w : weights) kernel::fill(w->grad.data(), kBefore, w->grad.count(), DType::f64, rig.context.stream);
  std::vector<Variable> leaves;
  const auto run_both_ways = [&] {
    leaves.clear();
    for (const tensor::Tensor& x : inputs) leaves.push_back(rig.tape.leaf(x));
    uint64_t seed = 1000;
    for (const Variable& y : f(rig.tape, leaves)) rig.tape.seed(y, rig.random(y.shape(), seed++));
    rig.tape.backward();
  };
  run_both_ways();

  double worst = 0;
  for (size_t i = 0; i < inputs.size(); ++i) {
    const tensor::Tensor gradient = rig.tape.take_gradient(leaves[i]);
    worst = std::max(worst, distance(gradient.span<double>(), differences(inputs[i], value)));
  }
  for (Weight* w : weights) {
    for (double& g : w->grad.span<double>()) g -= kBefore;
    worst = std::max(worst, distance(w->grad.span<double>(), differences(w->value, value)));
  }
  rig.tape.clear();

  // Again with stale gradients, which count as zero.
  std::vector<std::vector<double>> added;
  for (Weight* w : weights) {
    added.emplace_back(w->grad.span<double>().begin(), w->grad.span<double>().end());
    w->stale = true;
  }
  run_both_ways();
  for (size_t i = 0; i < weights.size(); ++i)
    worst = std::max(worst, distance(weights[i]->grad.span<double>(), added[i]));
  rig.tape.clear();
  return worst;
}

}  // namespace esp::autograd
