// Tests every strategy on a synthetic parameter list: gradients complete in any order, twice, or not at all.
#include "esp/sync/strategy.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>

#include "esp/base/error.h"
#include "esp/base/rng.h"
#include "esp/sync/testing.h"

namespace esp::sync {
namespace {

const std::vector<std::vector<int64_t>> kUnits = {{7, 3, 11}, {5}, {1, 1, 13, 2}, {4, 9}};

Options options_of(const std::string& method) {
  Options options;
  options.method = method;
  options.first_bucket_mb = 8 * 4.0 / (1 << 20);  // limit of eight elements per bucket
  options.bucket_mb = 16 * 4.0 / (1 << 20);
  return options;
}

// Small integers, whose sums are exact in any order.
double gradient(int rank, int64_t element, int64_t pass) {
  return static_cast<double>(rank + 1) * static_cast<double>(element % 7 + 1) + static_cast<double>(pass);
}

double sum_of(const std::vector<double>& units) {
  double sum = 0;
  for (const double unit : units) sum += unit;
  return sum;
}

class Strategies : public testing::TestWithParam<const char*> {
 protected:
  Options options() const { return options_of(GetParam()); }
};

INSTANTIATE_TEST_SUITE_P(Methods, Strategies, testing::Values("allreduce", "zero1", "zero2", "zero3"),
                         [](const auto& row) { return std::string(row.param); });

// Runs one pass. This rank completes only the gradients in `order`, in that order.
void run_pass(StrategyFixture& made, const PassOptions& pass, const std::vector<nn::Parameter*>& order, int rank,
              int64_t number) {
  made.strategy->begin_pass(pass);
  // Forward: uses the parameters in the same order on all ranks.
  for (nn::Parameter& p : made.list.all()) p.weight.fetch_value();
  made.strategy->begin_backward();
  for (nn::Parameter* p : order)
    made.deliver<float>(*p, [&](int64_t i) { return gradient(rank, made.first(*p) + i, number); });
  made.strategy->end_pass();
}

std::vector<nn::Parameter*> all_of(StrategyFixture& made) {
  std::vector<nn::Parameter*> all;
  for (nn::Parameter& p : made.list.all()) all.push_back(&p);
  return all;
}

// Compares every gradient that this rank owns with expected(element), counted over all units.
void expect_gradients(StrategyFixture& made, const std::function<double(int64_t)>& expected) {
  for (const optim::OptimizerShard& one : made.strategy->optimizer_shards()) {
    const int64_t first = made.list.units()[static_cast<size_t>(one.range.unit)].first + one.range.begin;
    for (int64_t i = 0; i < one.grads.count(); ++i)
      EXPECT_EQ(one.grads.as<float>()[i], expected(first + i)) << "element " << first + i;
  }
}

double sum_over(int size, int64_t element, int64_t pass) {
  double sum = 0;
  for (int r = 0; r < size; ++r) sum += gradient(r, element, pass);
  return sum;
}

TEST_P(Strategies, SumGradientsForAnyCompletionOrder) {
  for (const int size : {1, 2, 3, 5, 8})
    with_ranks(size, [&](comm::Communicator* comm) {
      StrategyFixture made(kUnits, comm, options(), DType::f32);
      for (int64_t step = 0; step < 3; ++step) {
        auto order = all_of(made);
        for (size_t i = order.size(); i > 1; --i)  // shuffles the order differently on each rank
          std::swap(
              order[i - 1],
              order[random_bits(static_cast<uint64_t>(comm->rank()), 4, i + 100 * static_cast<uint64_t>(step)) % i]);
        made.strategy->begin_step();
        run_pass(made, {}, order, comm->rank(), step);
        made.strategy->finish();
        expect_gradients(made, [&](int64_t i) { return sum_over(size, i, step); });
        made.strategy->after_step();
      }
    });
}

TEST_P(Strategies, CountMissingGradientsAsZero) {
  with_ranks(3, [&](comm::Communicator* comm) {
    StrategyFixture made(kUnits, comm, options(), DType::f32);
    const auto skips = [&](int rank, size_t index, int64_t step) {
      return index == 4 || (step > 0 && (index + static_cast<size_t>(rank)) % 3 == 0);
    };
    std::vector<size_t> parameter_of(static_cast<size_t>(made.list.count()));
    const auto all = all_of(made);
    for (size_t index = 0; index < all.size(); ++index)
      for (int64_t i = 0; i < all[index]->count(); ++i)
        parameter_of[static_cast<size_t>(made.first(*all[index]) + i)] = index;
    for (int64_t step = 0; step < 3; ++step) {  // gradients of the first step must not leak into later ones
      std::vector<nn::Parameter*> order;
      for (size_t index = all.size(); index-- > 0;)
        if (!skips(comm->rank(), index, step)) order.push_back(all[index]);
      made.strategy->begin_step();
      made.strategy->begin_pass({});
      for (nn::Parameter* p : all) p->weight.fetch_value();
      made.strategy->begin_backward();
      for (nn::Parameter* p : order)
        made.deliver<float>(*p, [&](int64_t i) { return gradient(comm->rank(), made.first(*p) + i, step); });
      made.strategy->end_pass();
      made.strategy->finish();
      double squares = 0;
      const auto expected = [&](int64_t i) {
        double sum = 0;
        for (int r = 0; r < 3; ++r)
          sum += skips(r, parameter_of[static_cast<size_t>(i)], step) ? 0 : gradient(r, i, step);
        return sum;
      };
      expect_gradients(made, expected);
      for (int64_t i = 0; i < made.list.count(); ++i) squares += expected(i) * expected(i);
      EXPECT_EQ(sum_of(made.strategy->sums_of_squares()), squares);
      made.strategy->after_step();
    }
  });
}

// A parameter may have a gradient in the first micro-batch only.
TEST_P(Strategies, SumGradientsOverMicroBatches) {
  for (const char* accumulate : {"local", "reduced"}) {
    Options options = this->options();
    options.accumulate = accumulate;
    if (options.accumulate == "reduced" && (options.method == "allreduce" || options.method == "zero1")) continue;
    with_ranks(2, [&](comm::Communicator* comm) {
      StrategyFixture made(kUnits, comm, options, DType::f32);
      auto all = all_of(made);
      std::reverse(all.begin(), all.end());
      auto fewer = all;
      fewer.erase(fewer.begin() + 2);
      const nn::Parameter* left_out = all[2];
      for (int step = 0; step < 2; ++step) {
        made.strategy->begin_step();
        run_pass(made, {true, false}, all, comm->rank(), 1);
        run_pass(made, {true, false}, all, comm->rank(), 2);
        run_pass(made, {true, true}, fewer, comm->rank(), 3);
        made.strategy->finish();
        expect_gradients(made, [&](int64_t i) {
          const bool out = i >= made.first(*left_out) && i < made.first(*left_out) + left_out->count();
          return sum_over(2, i, 1) + sum_over(2, i, 2) + (out ? 0 : sum_over(2, i, 3));
        });
        made.strategy->after_step();
      }
    });
  }
}

TEST_P(Strategies, UseUpdatedWeightsInTheNextPass) {
  with_ranks(3, [&](comm::Communicator* comm) {
    StrategyFixture made(kUnits, comm, options(), DType::f32);
    made.strategy->fill([&](nn::ParameterList::Unit& unit) {
      for (int64_t i = 0; i < unit.count; ++i) unit.values.as<float>()[i] = static_cast<float>(unit.first + i);
    });
    for (int step = 0; step < 3; ++step) {
      made.strategy->begin_step();
      made.strategy->begin_pass({});
      for (nn::Parameter& p : made.list.all()) {
        const tensor::Tensor& values = p.weight.fetch_value();
        for (int64_t i = 0; i < p.count(); ++i)
          EXPECT_EQ(values.as<float>()[i], static_cast<float>(made.first(p) + i + 1000 * step)) << p.name;
      }
      made.strategy->begin_backward();
      for (auto p = made.list.all().rbegin(); p != made.list.all().rend(); ++p)
        made.deliver<float>(*p, [](int64_t) { return 1; });
      made.strategy->end_pass();
      made.strategy->finish();
      for (const optim::OptimizerShard& one : made.strategy->optimizer_shards())
        for (int64_t i = 0; i < one.values.count(); ++i) one.values.as<float>()[i] += 1000;
      made.strategy->after_step();
    }
  });
}

// There are more ranks than elements. Some ranks own nothing but must still take part in every collective.
TEST_P(Strategies, SupportRanksThatOwnNothing) {
  for (const bool deterministic : {false, true})
    for (const DType storage : {DType::f32, DType::bf16})
      with_ranks(5, [&](comm::Communicator* comm) {
        Options options = this->options();
        options.deterministic = deterministic;
        StrategyFixture made({{2}, {1}}, comm, options, storage);
        made.strategy->begin_step();
        made.strategy->begin_pass({});
        for (nn::Parameter& p : made.list.all()) p.weight.fetch_value();
        made.strategy->begin_backward();
        for (auto p = made.list.all().rbegin(); p != made.list.all().rend(); ++p) {
          if (storage == DType::f32) {
            made.deliver<float>(*p, [](int64_t) { return 2; });
          } else {
            void* at = autograd::gradient_to_add_to(&p->weight, made.context.stream);
            kernel::fill(at, 2, p->count(), storage, made.context.stream);
            p->weight.on_ready();
          }
        }
        made.strategy->end_pass();
        made.strategy->finish();
        EXPECT_EQ(sum_of(made.strategy->sums_of_squares()), 3 * 100.0);
        made.strategy->after_step();
      });
}

TEST(Strategy, ErrorForUnknownMethodListsKnownMethods) {
  try {
    StrategyFixture made(kUnits, nullptr, options_of("zero7"), DType::f32);
    FAIL();
  } catch (const UsageError& error) {
    const std::string said = error.what();
    for (const char* word : {"sync.method", "zero7", "allreduce", "zero3"})
      EXPECT_NE(said.find(word), std::string::npos) << said;
  }
}

// x ← x − (γ/n)·Σ(a·x + noise) converges to E[x²] = γσ²/(n·a·(2 − γa)): n workers reduce the noise by a factor of n.
TEST(Strategy, ReducesNoiseVarianceByTheNumberOfRanks) {
  constexpr double kRate = 0.1, kCurvature = 0.8, kNoise = 1.5;
  constexpr int64_t kCount = 1024;  // number of independent scalar problems
  constexpr int kWarmUp = 100, kSteps = 700;
  for (const int size : {1, 2, 4, 8}) {
    double measured = 0;
    with_ranks(size, [&](comm::Communicator* comm) {
      Options options = options_of("allreduce");
      options.deterministic = true;
      StrategyFixture made({{kCount}}, comm, options, DType::f64);
      made.strategy->fill(
          [](nn::ParameterList::Unit& unit) { std::fill_n(unit.values.as<double>(), unit.count, 0.0); });
      nn::Parameter& x = made.list.all().front();
      optim::OptimizerOptions sgd;
      sgd.name = "sgd";
      sgd.momentum = 0;
      const auto optimizer = optim::make_optimizer(sgd, made.list, made.context, made.strategy->optimizer_shards());
      double sum = 0;
      for (int step = 0; step < kSteps; ++step) {
        made.strategy->begin_step();
        made.strategy->begin_pass({});
        const double* at = x.weight.fetch_value().as<double>();
        made.strategy->begin_backward();
        made.deliver<double>(x, [&](int64_t i) {
          const double unit =
              random_unit(static_cast<uint64_t>(comm->rank()), static_cast<uint64_t>(step), static_cast<uint64_t>(i));
          const double noise = kNoise * std::sqrt(12.0) * (unit - 0.5);  // uniform noise with variance kNoise²
          return (kCurvature * at[i] + noise) / size;
        });
        made.strategy->end_pass();
        made.strategy->finish();
        optimizer->step(kRate, 1);
        made.strategy->after_step();
        if (step >= kWarmUp)
          for (int64_t i = 0; i < kCount; ++i) sum += at[i] * at[i];
      }
      if (comm->rank() == 0) measured = sum / static_cast<double>(kCount * (kSteps - kWarmUp));
    });
    const double expected = kRate * kNoise * kNoise / (size * kCurvature * (2 - kRate * kCurvature));
    EXPECT_NEAR(measured, expected, 0.05 * expected) << size << " ranks";
    RecordProperty("of_the_formula_" + std::to_string(size), std::to_string(measured / expected));
  }
}

}  // namespace
}  // namespace esp::sync
