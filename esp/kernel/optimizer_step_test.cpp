#include "esp/kernel/optimizer_step.h"

#include "esp/kernel/elementwise.h"
#include "esp/kernel/split_master.h"
#include "esp/kernel/test_arrays.h"

namespace esp::kernel {
namespace {

// The buffers of one parameter in storage type `type`. A second Problem in f64 can have the same gradients.
struct Problem {
  Problem(int64_t count, DType type)
      : dtype(type),
        master(Array::random(count, accumulator_of(type), 1, 0.08)),
        weights(count, type),
        m(count, accumulator_of(type)),
        v(count, accumulator_of(type)) {}
  // Draws gradients of magnitude 1e-9 to 1: some far below eps and some far above. They are rounded to `rounded_to`, so
  // that problems of different types can have equal gradients.
  void draw(uint64_t step, DType rounded_to) {
    Array rounded(master.count(), rounded_to);
    rounded.fill([&](int64_t i) {
      const double size = std::pow(10, -9 + 9 * random_unit(3, 1, static_cast<uint64_t>(i)));
      return size * (2 * random_unit(step, 2, static_cast<uint64_t>(i)) - 1);
    });
    grad = Array(master.count(), dtype);
    grad.fill([&](int64_t i) { return rounded[i]; });
  }
  StepBuffers buffers(bool with_weights) {
    return {.master = master.data(),
            .weights = with_weights ? weights.data() : nullptr,
            .grad = grad.data(),
            .m = m.data(),
            .v = v.data(),
            .count = master.count(),
            .grad_type = dtype};
  }
  DType dtype;
  Array master, weights, m, v, grad;
};

// Adam as in the paper, one weight at a time, in double.
struct PlainAdam {
  double w, m = 0, v = 0;
  void step(double g, const AdamStep& s, bool eps_inside) {
    if (!s.decoupled) g += s.weight_decay * w;
    m = s.beta1 * m + (1 - s.beta1) * g;
    v = s.beta2 * v + (1 - s.beta2) * g * g;
    const double m_hat = m / (1 - std::pow(s.beta1, s.t)), v_hat = v / (1 - std::pow(s.beta2, s.t));
    const double denominator = eps_inside ? std::sqrt(v_hat + s.eps) : std::sqrt(v_hat) + s.eps;
    w -= s.lr * m_hat / denominator + (s.decoupled ? s.lr * s.weight_decay * w : 0);
  }
};

// The largest absolute difference from PlainAdam after 100 steps.
double distance_after_100_steps(DType dtype, bool decoupled, bool eps_inside) {
  constexpr int64_t kCount = 1003;
  const Threads pair(2);
  Problem problem(kCount, dtype);
  std::vector<PlainAdam> plain;
  for (int64_t i = 0; i < kCount; ++i) plain.push_back({problem.master[i]});
  for (int64_t t = 1; t <= 100; ++t) {
    problem.draw(static_cast<uint64_t>(t), dtype);
    const AdamStep step{.lr = 6e-4, .weight_decay = 0.1, .t = t, .decoupled = decoupled, .grad_scale = 0.5};
    adam_step(problem.buffers(true), step, pair);
    for (int64_t i = 0; i < kCount; ++i) plain[static_cast<size_t>(i)].step(problem.grad[i] * 0.5, step, eps_inside);
  }
  double largest = 0;
  for (int64_t i = 0; i < kCount; ++i) {
    largest = std::max(largest, std::abs(problem.master[i] - plain[static_cast<size_t>(i)].w));
    Array rounded(1, dtype);
    rounded.set(0, problem.master[i]);
    EXPECT_EQ(problem.weights[i], rounded[0]) << "the weight is not the rounded master weight";
  }
  EXPECT_TRUE(problem.master.intact() && problem.m.intact() && problem.v.intact() && problem.weights.intact());
  return largest;
}

TEST(Adam, StaysCloseToDoubleReferenceOver100Steps) {
  for_each_target([&](const std::string& target) {
    for (bool decoupled : {true, false}) {
      EXPECT_LT(distance_after_100_steps(DType::f64, decoupled, false), 1e-13) << target;
      for (DType dtype : {DType::f32, DType::bf16, DType::f16})
        EXPECT_LT(distance_after_100_steps(dtype, decoupled, false), 1e-7) << target << ' ' << name_of(dtype);
    }
  });
}

// The denominator √v̂ + ε is correct. The comparison must detect an optimizer that uses √(v̂ + ε).
TEST(Adam, AddsEpsilonAfterSquareRoot) {
  EXPECT_GT(distance_after_100_steps(DType::f64, true, true), 1e-2);
  EXPECT_GT(distance_after_100_steps(DType::f32, true, true), 1e-2);
}

TEST(Adam, FirstStepFollowsSignOfGradient) {
  const Threads alone(1);
  Problem problem(4, DType::f32);
  problem.grad = Array(4, DType::f32);
  const double grads[] = {1e-3, -5, 0, 700};
  problem.grad.fill([&](int64_t i) { return grads[i]; });
  const Array before = problem.master;
  adam_step(problem.buffers(false), {.lr = 0.01, .t = 1}, alone);
  const double moves[] = {-0.01, 0.01, 0, -0.01};
  for (int64_t i = 0; i < 4; ++i) EXPECT_NEAR(problem.master[i] - before[i], moves[i], 2e-7) << i;
}

TEST(Adam, AppliesDecayToWeightBeforeStep) {
  const Threads alone(1);
  Problem problem(1, DType::f64);
  problem.master.set(0, 2);
  problem.grad = Array(1, DType::f64);
  problem.grad.set(0, 3);
  adam_step(problem.buffers(false), {.lr = 0.1, .eps = 0, .weight_decay = 0.5, .t = 1}, alone);
  // Decay uses the weight before the step (2), not the weight after it (2 − 0.1)
  EXPECT_NEAR(problem.master[0], 2 - 0.1 * 1 - 0.1 * 0.5 * 2, 1e-15);
}

TEST(Adam, ResultsAreBitIdenticalForAnyPartition) {
  constexpr int64_t kCount = 40003;
  for (DType dtype : kFloating) {
    Problem one(kCount, dtype), three(kCount, dtype), pieces(kCount, dtype);
    for (int64_t t = 1; t <= 2; ++t) {
      const AdamStep step{.lr = 1e-3, .weight_decay = 0.1, .t = t};
      for (Problem* problem : {&one, &three, &pieces}) problem->draw(static_cast<uint64_t>(t), dtype);
      adam_step(one.buffers(true), step, Threads(1));
      adam_step(three.buffers(true), step, Threads(3));
      for (int64_t first = 0; first < kCount;) {
        const int64_t count = std::min<int64_t>(kCount - first, first % 7 == 0 ? 1009 : 13);
        const StepBuffers all = pieces.buffers(true);
        const DType state = accumulator_of(dtype);
        adam_step({at(all.master, first, state), at(all.weights, first, dtype), at(all.grad, first, dtype),
                   at(all.m, first, state), at(all.v, first, state), count, dtype},
                  step, Threads(1));
        first += count;
      }
    }
    for (Problem* other : {&three, &pieces}) {
      EXPECT_TRUE(one.master.same_bits(other->master) && one.m.same_bits(other->m) && one.v.same_bits(other->v));
      EXPECT_TRUE(one.weights.same_bits(other->weights));
    }
  }
}

TEST(Adam, MatchesRef) {
  const Threads alone(1);
  for (DType dtype : kFloating)
    for (bool decoupled : {true, false}) {
      Problem problem(77, dtype), want(77, dtype);
      for (int64_t t = 1; t <= 5; ++t) {
        const AdamStep step{.lr = 1e-3, .weight_decay = 0.1, .t = t, .decoupled = decoupled, .grad_scale = 0.25};
        problem.draw(static_cast<uint64_t>(t), dtype);
        want.draw(static_cast<uint64_t>(t), dtype);
        adam_step(problem.buffers(true), step, alone);
        ref::adam_step(want.buffers(true), step);
      }
      expect_near(problem.master, want.master, 8, 1e-2, std::string(name_of(dtype)));
      // tolerance of m: it is a sum of gradients of both signs with magnitude √(200 v)
      for (int64_t i = 0; i < 77; ++i)
        ASSERT_NEAR(problem.m[i], want.m[i], 8 * last_place(want.m.dtype()) * std::sqrt(200 * want.v[i])) << i;
      expect_near(problem.v, want.v, 8, 0, std::string(name_of(dtype)));
    }
}

TEST(Sgd, MomentumAndNesterovMatchRefAndTextbookFormula) {
  const Threads pair(2);
  for_each_target([&](const std::string& target) {
    for (DType dtype : kFloating)
      for (double momentum : {0.0, 0.9})
        for (bool nesterov : {false, true}) {
          Problem problem(1003, dtype), want(1003, dtype);
          std::vector<double> w, u(1003);
          for (int64_t i = 0; i < 1003; ++i) w.push_back(problem.master[i]);
          const SgdStep step{
              .lr = 0.01, .momentum = momentum, .weight_decay = 0.02, .nesterov = nesterov, .grad_scale = 2};
          for (uint64_t t = 1; t <= 20; ++t) {
            problem.draw(t, dtype);
            want.draw(t, dtype);
            sgd_step(problem.buffers(true), step, pair);
            ref::sgd_step(want.buffers(true), step);
            for (size_t i = 0; i < 1003; ++i) {
              const double g = 2 * problem.grad[static_cast<int64_t>(i)] + 0.02 * w[i];
              u[i] = momentum * u[i] + g;
              w[i] -= 0.01 * (momentum == 0 ? g : nesterov ? g + momentum * u[i] : u[i]);
            }
          }
          const std::string where = fmt::format("{} {} {} {}", target, name_of(dtype), momentum, nesterov);
          expect_near(problem.master, want.master, 20, 0.1, where);
          for (size_t i = 0; i < 1003; ++i)
            ASSERT_NEAR(problem.master[static_cast<int64_t>(i)], w[i], 2e-6 * std::max(0.1, std::abs(w[i]))) << where;
        }
  });
}

// A split master copy must give the same results as a full master copy that is split and joined after every step.
TEST(Adam, MatchesRefWithSplitMasterCopy) {
  constexpr int64_t kCount = 3003;
  for_each_target([&](const std::string& target) {
    for (const bool sgd : {false, true}) {
      const Threads pair(2);
      Problem whole(kCount, DType::bf16), split(kCount, DType::bf16);
      std::vector<uint16_t> lower(kCount), kept(kCount);
      const auto split_and_join = [&] {
        cast(whole.weights.data(), DType::bf16, whole.master.data(), DType::f32, kCount, pair);
        split_master_weights(kept.data(), static_cast<const float*>(whole.master.data()), kCount, pair);
        join_master_weights(static_cast<float*>(whole.master.data()), whole.weights.data(), kept.data(), kCount, pair);
      };
      split_and_join();
      lower = kept;
      split.weights = whole.weights;
      for (int64_t t = 1; t <= 30; ++t) {
        for (Problem* one : {&whole, &split}) one->draw(static_cast<uint64_t>(t), DType::bf16);
        StepBuffers split_buffers = split.buffers(true);
        split_buffers.master = nullptr;
        split_buffers.lower = lower.data();
        if (sgd) {
          const SgdStep step{.lr = 0.1, .momentum = 0.9, .weight_decay = 0.01};
          sgd_step(whole.buffers(true), step, pair);
          sgd_step(split_buffers, step, pair);
        } else {
          const AdamStep step{.lr = 6e-4, .weight_decay = 0.1, .t = t};
          adam_step(whole.buffers(true), step, pair);
          adam_step(split_buffers, step, pair);
        }
        split_and_join();
        ASSERT_TRUE(split.weights.same_bits(whole.weights)) << target << " step " << t;
        ASSERT_EQ(lower, kept) << target << " step " << t;
      }
      EXPECT_TRUE(split.m.same_bits(whole.m) && split.v.same_bits(whole.v)) << target;
    }
  });
}

}  // namespace
}  // namespace esp::kernel
