// Compares optimizer steps with the reference kernels (ref), with scalars from the host and from the device. Checks
// that stochastic rounding keeps the mean.
#include "esp/kernel/cuda/device_scalars.h"
#include "esp/kernel/cuda/test_gpu.h"
#include "esp/kernel/elementwise.h"
#include "esp/kernel/optimizer_step.h"
#include "esp/kernel/split_master.h"

namespace esp::kernel {
namespace {

class OptimizerStepOnGpu : public GpuTest {
 protected:
  struct State {
    Array master, weights, grad, m, v;
    State(int64_t count, DType dtype)
        : master(Array::random(count, accumulator_of(dtype), 1)),
          weights(count, dtype),
          grad(Array::random(count, dtype, 2)),
          m(Array::random(count, accumulator_of(dtype), 3, 0.1)),
          v(count, accumulator_of(dtype)) {
      v.fill([](int64_t i) { return 1e-3 * random_unit(4, 4, static_cast<uint64_t>(i)); });
    }
    StepBuffers buffers(bool with_weights) {
      return {master.data(), with_weights ? weights.data() : nullptr, grad.data(), m.data(), v.data(), master.count(),
              grad.dtype()};
    }
  };
  struct OnGpu {
    GpuArray master, weights, grad, m, v;
    OnGpu(GpuTest& test, const State& s, int64_t shift)
        : master(test, s.master, shift),
          weights(test, s.weights, shift),
          grad(test, s.grad, shift),
          m(test, s.m, shift),
          v(test, s.v, shift) {}
    StepBuffers buffers(bool with_weights, const State& s) {
      return {master,        with_weights ? static_cast<void*>(weights) : nullptr, grad, m, v, s.master.count(),
              s.grad.dtype()};
    }
    void expect(const State& s, bool with_weights, const std::string& where) {
      expect_near(master.fetch(), s.master, 8, 1, where + " master");
      expect_near(m.fetch(), s.m, 8, 1, where + " m");
      expect_near(v.fetch(), s.v, 8, 1, where + " v");
      if (with_weights) expect_near(weights.fetch(), s.weights, 8, 1, where + " weights");
    }
  };
};

TEST_F(OptimizerStepOnGpu, AdamMatchesRef) {
  for (DType dtype : kFloating)
    for (int64_t count : {5, 4096, 10001})
      for (bool decoupled : {true, false})
        for (int64_t shift : {0, 1}) {
          const bool with_weights = dtype == DType::bf16 || dtype == DType::f16;
          State s(count, dtype);
          OnGpu on(*this, s, shift), captured(*this, s, shift);
          AdamStep step{.lr = 1e-2, .weight_decay = 0.1, .t = 7, .decoupled = decoupled, .grad_scale = 0.5};
          adam_step(on.buffers(with_weights, s), step, stream);
          AdamStep other = step;
          other.lr = 55, other.t = 1, other.grad_scale = 2;
          GpuVector<cuda::StepScalars> scalars(*this, {{1e-2, 0.25, 7}});
          cuda::adam_step(captured.buffers(with_weights, s), other, static_cast<cuda::StepScalars*>(scalars), stream);
          ref::adam_step(s.buffers(with_weights), step);
          on.expect(s, with_weights, fmt::format("{} {}", name_of(dtype), count));
          captured.expect(s, with_weights, fmt::format("captured {} {}", name_of(dtype), count));
        }
}

// A split master copy gives the same results as a full one. Exception: a weight exactly between two bf16 values (a tie)
// moves by one unit in the last place.
TEST_F(OptimizerStepOnGpu, AdamMatchesRefWithSplitMasterCopy) {
  for (int64_t count : {5, 4096, 70001})
    for (int64_t shift : {0, 1})
      for (bool many : {false, true}) {
        const std::string where = fmt::format("{} {} {}", count, shift, many);
        State s(count, DType::bf16);
        const auto n = static_cast<size_t>(count);
        std::vector<uint16_t> low(n);
        cast(s.weights.data(), DType::bf16, s.master.data(), DType::f32, count, {});
        split_master_weights(low.data(), static_cast<const float*>(s.master.data()), count, {});
        join_master_weights(static_cast<float*>(s.master.data()), s.weights.data(), low.data(), count, {});
        OnGpu whole(*this, s, shift), split(*this, s, shift);
        GpuBuffer lower(*this, low.data(), 2 * n, 2 * static_cast<size_t>(shift));
        StepBuffers split_buffers = split.buffers(true, s);
        split_buffers.master = nullptr;
        split_buffers.lower = static_cast<uint16_t*>(lower.data());
        for (int64_t t : {7, 8}) {
          const AdamStep step{.lr = 1e-2, .weight_decay = 0.1, .t = t, .grad_scale = 0.5};
          adam_step(whole.buffers(true, s), step, stream);
          if (many)
            cuda::multi_tensor_adam_step({&split_buffers, 1}, {&step, 1}, stream);
          else
            adam_step(split_buffers, step, stream);
        }
        EXPECT_TRUE(lower.fetch(low.data())) << "the kernel wrote outside of the array";
        Array joined(count, DType::f32);
        join_master_weights(static_cast<float*>(joined.data()), split.weights.fetch().data(), low.data(), count, {});
        EXPECT_TRUE(split.m.fetch().same_bits(whole.m.fetch())) << where;
        EXPECT_TRUE(split.v.fetch().same_bits(whole.v.fetch())) << where;
        const Array master = whole.master.fetch();
        for (int64_t i = 0; i < count; ++i)
          ASSERT_NEAR(joined[i], master[i], std::abs(master[i]) * 3e-7) << where << " element " << i;
        const Array rounded = split.weights.fetch(), expected = whole.weights.fetch();
        int64_t num_different = 0;
        for (int64_t i = 0; i < count; ++i) num_different += rounded[i] != expected[i];
        EXPECT_LE(num_different, count / 10000) << where;
      }
}

TEST_F(OptimizerStepOnGpu, SgdMatchesRef) {
  for (DType dtype : kFloating)
    for (double momentum : {0.0, 0.9})
      for (bool nesterov : {false, true}) {
        const bool with_weights = dtype == DType::bf16 || dtype == DType::f16;
        State s(4099, dtype);
        OnGpu on(*this, s, 0);
        const SgdStep step{
            .lr = 0.1, .momentum = momentum, .weight_decay = 0.01, .nesterov = nesterov, .grad_scale = 2};
        sgd_step(on.buffers(with_weights, s), step, stream);
        ref::sgd_step(s.buffers(with_weights), step);
        on.expect(s, with_weights, fmt::format("{} momentum {}", name_of(dtype), momentum));
      }
}

TEST_F(OptimizerStepOnGpu, StochasticRoundingIsUnbiased) {
  const int64_t count = 1 << 16;
  for (DType dtype : {DType::bf16, DType::f16}) {
    State s(count, dtype);
    s.weights.fill([](int64_t) { return 1.0; });
    s.grad.fill([](int64_t) { return 1.0; });
    s.m.fill([](int64_t) { return 0.0; });
    s.v.fill([](int64_t) { return 0.0; });
    OnGpu on(*this, s, 0), again(*this, s, 0);
    // Adam's first step changes a weight by lr. lr is half a unit in the last place, so rounding to nearest would lose
    // the change.
    const double lr = dtype == DType::bf16 ? 0x1p-9 : 0x1p-12;
    cuda::adam_step_stochastic(on.buffers(true, s), {.lr = lr, .t = 1}, 5, 6, stream);
    cuda::adam_step_stochastic(again.buffers(true, s), {.lr = lr, .t = 1}, 5, 6, stream);
    const Array got = on.weights.fetch();
    double mean = 0;
    int64_t moved = 0;
    for (int64_t i = 0; i < count; ++i) {
      mean += got[i] / count;
      moved += got[i] != 1;
    }
    EXPECT_NEAR(mean, 1 - lr, 0.03 * lr);
    EXPECT_GT(moved, count / 4);
    EXPECT_LT(moved, count * 3 / 4);
    EXPECT_TRUE(got.same_bits(again.weights.fetch()));
  }
}

TEST_F(OptimizerStepOnGpu, ClipsGradientsOnDevice) {
  GpuVector<double> squares(*this, {16.0});
  GpuVector<cuda::StepScalars> scalars(*this, {{1e-3, 9, 4}});
  cuda::StepScalars got;
  cuda::set_grad_scale(scalars, squares, 1.0, 0.5, stream);
  EXPECT_TRUE(scalars.copy.fetch(&got));
  EXPECT_DOUBLE_EQ(got.grad_scale, 0.5 * (1.0 / 4));
  EXPECT_EQ(got.t, 4);
  cuda::set_grad_scale(scalars, squares, 5.0, 0.5, stream);
  EXPECT_TRUE(scalars.copy.fetch(&got));
  EXPECT_DOUBLE_EQ(got.grad_scale, 0.5);
  GpuVector<double> bad(*this, {std::numeric_limits<double>::infinity()});
  cuda::set_grad_scale(scalars, bad, 1.0, 0.5, stream);
  EXPECT_TRUE(scalars.copy.fetch(&got));
  EXPECT_TRUE(std::isnan(got.grad_scale));
}

}  // namespace
}  // namespace esp::kernel
