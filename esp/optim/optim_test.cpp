#include <gtest/gtest.h>

#include <cmath>
#include <cstring>
#include <limits>

#include "esp/base/error.h"
#include "esp/kernel/elementwise.h"
#include "esp/optim/gradients.h"
#include "esp/optim/lr_schedule.h"
#include "esp/optim/optimizer.h"

namespace esp::optim {
namespace {

using device::MemoryCategory;

struct OptimizerTest : testing::Test {
  device::MemoryAccount account;
  device::MemoryPool pool{account};
  tensor::Context context{{}, &pool};

  // Builds two units. Each has a matrix with weight decay and a vector without.
  void build(nn::ParameterList& list, DType type) {
    for (const char* unit : {"a", "b"}) {
      list.begin_unit(unit);
      list.add(std::string(unit) + ".weight", {3, 5}, nn::Init::normal(0.5), true);
      list.add(std::string(unit) + ".bias", {5}, nn::Init::normal(0.5), false);
    }
    list.materialize(context, type, true);
    list.initialise(1, context.stream);
  }

  void set_gradients(nn::ParameterList& list, int64_t step) {
    for (auto& unit : list.units())
      for (int64_t i = 0; i < unit.count; ++i) {
        const double g = std::sin(static_cast<double>(i + 7 * step)) * 0.1;
        if (unit.grads.dtype() == DType::f64)
          unit.grads.as<double>()[i] = g;
        else
          unit.grads.as<float>()[i] = static_cast<float>(g);
      }
  }
};

TEST_F(OptimizerTest, AdamWMatchesReferenceFormulaOverHundredSteps) {
  nn::ParameterList list;
  build(list, DType::f64);
  std::vector<double> w, m, v;
  std::vector<bool> decays;
  for (auto& p : list.all())
    for (double x : p.weight.value.span<double>()) {
      w.push_back(x);
      decays.push_back(p.decay);
    }
  m.resize(w.size());
  v.resize(w.size());
  OptimizerOptions options;
  options.weight_decay = 0.1;
  auto optimizer = make_optimizer(options, list, context);
  for (int64_t t = 1; t <= 100; ++t) {
    set_gradients(list, t);
    optimizer->step(1e-2, 0.5);
    size_t at = 0;
    for (auto& unit : list.units())
      for (double raw : unit.grads.span<double>()) {
        const double g = raw * 0.5;
        if (decays[at]) w[at] -= 1e-2 * 0.1 * w[at];
        m[at] = 0.9 * m[at] + 0.1 * g;
        v[at] = 0.999 * v[at] + 0.001 * g * g;
        w[at] -= 1e-2 * (m[at] / (1 - std::pow(0.9, t))) / (std::sqrt(v[at] / (1 - std::pow(0.999, t))) + 1e-8);
        ++at;
      }
  }
  size_t at = 0;
  for (auto& unit : list.units())
    for (double x : unit.values.span<double>()) EXPECT_NEAR(x, w[at++], 1e-12);
  EXPECT_EQ(optimizer->num_steps(), 100);
}

OptimizerShard part(const nn::ParameterList& list, int unit, int64_t begin, int64_t end) {
  const auto& of = list.units()[static_cast<size_t>(unit)];
  return {{unit, begin, end}, of.values.slice(begin, end), of.grads.slice(begin, end)};
}

TEST_F(OptimizerTest, ShardedUpdateIsBitIdenticalToWholeUpdate) {
  for (const char* name : {"adamw", "adam", "sgd"}) {
    nn::ParameterList whole, split;
    build(whole, DType::f32);
    build(split, DType::f32);
    OptimizerOptions options;
    options.name = name;
    options.weight_decay = 0.01;
    auto one = make_optimizer(options, whole, context);
    auto left = make_optimizer(options, split, context, {part(split, 0, 0, 7), part(split, 1, 0, 16)});
    auto right = make_optimizer(options, split, context, {part(split, 0, 7, 20), part(split, 1, 16, 20)});
    for (int64_t t = 1; t <= 5; ++t) {
      set_gradients(whole, t);
      set_gradients(split, t);
      one->step(1e-2, 1);
      left->step(1e-2, 1);
      right->step(1e-2, 1);
    }
    for (size_t unit = 0; unit < 2; ++unit)
      for (int64_t i = 0; i < 20; ++i)
        EXPECT_EQ(whole.units()[unit].values.as<float>()[i], split.units()[unit].values.as<float>()[i]) << name << i;
  }
}

TEST_F(OptimizerTest, MixedPrecisionUsesSixteenBytesPerParameter) {
  nn::ParameterList list;
  build(list, DType::bf16);
  auto optimizer = make_optimizer({}, list, context);
  EXPECT_EQ(account.use(MemoryCategory::parameter).current, 2u * 40);
  EXPECT_EQ(account.use(MemoryCategory::gradient).current, 2u * 40);
  EXPECT_EQ(account.use(MemoryCategory::optimizer).current, 12u * 40);
}

TEST_F(OptimizerTest, ErrorForUnknownOptimizerListsKnownNames) {
  nn::ParameterList list;
  build(list, DType::f32);
  OptimizerOptions options;
  options.name = "adamm";
  try {
    make_optimizer(options, list, context);
    FAIL();
  } catch (const UsageError& error) {
    EXPECT_NE(std::string(error.what()).find("adamw"), std::string::npos);
  }
}

TEST(LrSchedule, RateRisesInWarmupAndEndsAtFloor) {
  LrScheduleOptions o{"cosine", 1.0, 110, 10, 0.1, 0};
  EXPECT_DOUBLE_EQ(learning_rate(o, 0), 0.1);
  EXPECT_DOUBLE_EQ(learning_rate(o, 9), 1.0);
  EXPECT_DOUBLE_EQ(learning_rate(o, 10), 1.0);
  EXPECT_NEAR(learning_rate(o, 60), 0.55, 1e-12);
  EXPECT_NEAR(learning_rate(o, 110), 0.1, 1e-12);
  o.name = "linear";
  EXPECT_NEAR(learning_rate(o, 60), 0.55, 1e-12);
  o.name = "constant";
  EXPECT_DOUBLE_EQ(learning_rate(o, 109), 1.0);
  o.name = "wsd";
  o.decay = 20;
  EXPECT_DOUBLE_EQ(learning_rate(o, 90), 1.0);
  EXPECT_NEAR(learning_rate(o, 100), 0.55, 1e-12);
  EXPECT_NEAR(learning_rate(o, 110), 0.1, 1e-12);
}

TEST(LossScale, HalvesOnOverflowAndGrowsBack) {
  LossScale scale({1024, 1, 4096, 3}, true);
  scale.update(true);
  EXPECT_EQ(scale.scale(), 512);
  for (int i = 0; i < 3; ++i) scale.update(false);
  EXPECT_EQ(scale.scale(), 1024);
  LossScale bf16 = LossScale::fixed();
  bf16.update(true);
  EXPECT_EQ(bf16.scale(), 1);
}

TEST_F(OptimizerTest, ClippingDetectsNonFiniteGradient) {
  nn::ParameterList list;
  build(list, DType::f32);
  set_gradients(list, 1);
  const double sum = sum_of_squares(list, context.stream);
  EXPECT_GT(sum, 0);
  EXPECT_NEAR(clip_factor(std::sqrt(sum), 0.01), 0.01 / (std::sqrt(sum) + 1e-6), 1e-15);
  EXPECT_EQ(clip_factor(0.5, 1), 1);
  list.units()[1].grads.as<float>()[3] = std::numeric_limits<float>::infinity();
  EXPECT_FALSE(std::isfinite(sum_of_squares(list, context.stream)));
}

// The split master copy needs 10 bytes of optimizer state per element instead of 12. After 200 steps it differs from
// the full master copy by less than 2e-6.
TEST_F(OptimizerTest, SplitMasterCopyStaysCloseToFullMasterCopy) {
  nn::ParameterList one, other;
  build(one, DType::bf16);
  build(other, DType::bf16);
  OptimizerOptions options;
  options.weight_decay = 0.1;
  const auto used = [&] { return account.use(MemoryCategory::optimizer, device::MemoryTier::device).current; };
  const auto before = used();
  auto whole = make_optimizer(options, one, context);
  EXPECT_EQ(used() - before, 2 * 20 * 12u);
  options.split_master = true;
  auto split = make_optimizer(options, other, context);
  EXPECT_EQ(used() - before, 2 * 20 * (12u + 10u));
  for (int64_t t = 1; t <= 200; ++t) {
    for (nn::ParameterList* list : {&one, &other})
      for (auto& unit : list->units()) {
        std::vector<float> g;
        for (int64_t i = 0; i < unit.count; ++i) g.push_back(0.1f * std::sin(static_cast<float>(i + 7 * t)));
        kernel::cast(unit.grads.data(), DType::bf16, g.data(), DType::f32, unit.count, context.stream);
      }
    whole->step(1e-3, 1);
    split->step(1e-3, 1);
  }
  ASSERT_EQ(split->states().size(), whole->states().size());
  std::vector<float> copy(20);
  for (size_t i = 0; i < split->states().size(); ++i) {
    const OptimizerState &s = split->states()[i], &w = whole->states()[i];
    EXPECT_EQ(s.slot, w.slot);
    EXPECT_EQ(s.values.shape(), w.values.shape());
    if (s.slot != "master") continue;
    s.read(0, tensor::Tensor::borrow(copy.data(), {20}, DType::f32));
    for (int64_t k = 0; k < 20; ++k)
      EXPECT_NEAR(copy[static_cast<size_t>(k)], w.values.as<float>()[k], 2e-6)
          << "split master copy differs from full master copy";
    s.write(w.values);
    s.read(0, tensor::Tensor::borrow(copy.data(), {20}, DType::f32));
    for (int64_t k = 0; k < 20; ++k) EXPECT_EQ(copy[static_cast<size_t>(k)], w.values.as<float>()[k]);
  }
  for (size_t u = 0; u < 2; ++u)  // writing the master copy must also have written the rounded bf16 values
    EXPECT_EQ(0, std::memcmp(one.units()[u].values.data(), other.units()[u].values.data(), 40));
}

}  // namespace
}  // namespace esp::optim
