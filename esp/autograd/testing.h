// Gradient check for tests of functions and layers: compares gradients with central differences in fp64.
#pragma once

#include <cmath>
#include <functional>
#include <vector>

#include "esp/autograd/tape.h"
#include "esp/base/rng.h"
#include "esp/kernel/elementwise.h"

namespace esp::autograd {

// A tape with its own memory pool and threads.
struct TapeFixture {
  device::MemoryAccount account;
  device::MemoryPool pool{account};
  device::ThreadPool threads;
  tensor::Context context;
  Tape tape;

  explicit TapeFixture(int num_threads = 1)
      : threads(num_threads), context{{{}, &threads, nullptr}, &pool}, tape(context) {}

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

// Relative L2 distance between two vectors.
inline double distance(std::span<const double> a, std::span<const double> b) {
  double apart = 0, size = 0;
  for (size_t i = 0; i < a.size(); ++i) {
    apart += (a[i] - b[i]) * (a[i] - b[i]);
    size += b[i] * b[i];
  }
  return size == 0 ? std::sqrt(apart) : std::sqrt(apart / size);
}

// ∂value/∂x by central differences, element by element. value() reads x.
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

// Maps inputs to outputs on the tape. The gradient check uses the loss Σ output·probe with random tensors as probes.
using Function = std::function<std::vector<Variable>(Tape&, const std::vector<Variable>&)>;

// The largest relative distance between gradient and central difference, over all inputs and weights. Weight gradients
// start at 0.5 to test that functions add to them.
inline double max_gradient_error(TapeFixture& fixture, const Function& f, const std::vector<tensor::Tensor>& inputs,
                                 const std::vector<Weight*>& weights) {
  const auto value = [&] {
    const NoGradGuard quiet(fixture.tape);
    double sum = 0;
    uint64_t seed = 1000;
    for (const Variable& y : f(fixture.tape, {inputs.begin(), inputs.end()})) {
      const tensor::Tensor probe = fixture.random(y.shape(), seed++);
      for (int64_t i = 0; i < probe.count(); ++i) sum += probe.as<double>()[i] * y.value().as<double>()[i];
    }
    return sum;
  };
  constexpr double kBefore = 0.5;
  for (Weight* w : weights) kernel::fill(w->grad.data(), kBefore, w->grad.count(), DType::f64, fixture.context.stream);
  std::vector<Variable> leaves;
  const auto run_both_ways = [&] {
    leaves.clear();
    for (const tensor::Tensor& x : inputs) leaves.push_back(fixture.tape.leaf(x));
    uint64_t seed = 1000;
    for (const Variable& y : f(fixture.tape, leaves)) fixture.tape.seed(y, fixture.random(y.shape(), seed++));
    fixture.tape.backward();
  };
  run_both_ways();

  double worst = 0;
  for (size_t i = 0; i < inputs.size(); ++i) {
    const tensor::Tensor gradient = fixture.tape.take_gradient(leaves[i]);
    worst = std::max(worst, distance(gradient.span<double>(), differences(inputs[i], value)));
  }
  for (Weight* w : weights) {
    for (double& g : w->grad.span<double>()) g -= kBefore;
    worst = std::max(worst, distance(w->grad.span<double>(), differences(w->value, value)));
  }
  fixture.tape.clear();

  // The second forward and backward begin with stale gradients, which must count as zero.
  std::vector<std::vector<double>> added;
  for (Weight* w : weights) {
    added.emplace_back(w->grad.span<double>().begin(), w->grad.span<double>().end());
    w->stale = true;
  }
  run_both_ways();
  for (size_t i = 0; i < weights.size(); ++i)
    worst = std::max(worst, distance(weights[i]->grad.span<double>(), added[i]));
  fixture.tape.clear();
  return worst;
}

}  // namespace esp::autograd
