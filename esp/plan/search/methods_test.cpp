#include "esp/plan/search/methods.h"

#include <gtest/gtest.h>

#include "esp/base/error.h"
#include "esp/plan/search/testing.h"

namespace esp::plan {
namespace {

const std::vector<size_t> kSizes = {3, 4, 3, 5, 2, 4, 3};

double least_value(const RandomProblem& problem) {
  double least = kNever;
  for (const Choice& choice : problem.all()) least = std::min(least, problem.choice_value(choice).value);
  return least;
}

TEST(SearchMethods, AllReachTheOptimumOfRandomCosts) {
  for (uint64_t seed = 1; seed <= 6; ++seed) {
    const RandomProblem problem(seed, kSizes);
    const double least = least_value(problem);
    for (const SearchMethod& method : search_methods()) {
      const SearchResult result = method.run(problem, {});
      ASSERT_TRUE(result.found()) << method.name;
      EXPECT_DOUBLE_EQ(result.best().value, least) << method.name << " seed " << seed;
      EXPECT_GT(result.counts.evaluated, 0) << method.name;
      EXPECT_EQ(result.exact, method.exact);
    }
  }
}

// Many small problems with rules and memory limits that allow few choices or none. Branch and bound must never prune
// the optimum.
TEST(SearchMethods, BranchAndBoundNeverPrunesTheOptimum) {
  int without = 0;
  int64_t evaluated = 0, all = 0;
  for (uint64_t seed = 100; seed < 400; ++seed) {
    const RandomProblem problem(seed, {3, 3, 4, 2, 3}, 0.3, 0.25 + 0.5 * random_unit(seed, 9, 0));
    const double least = least_value(problem);
    const SearchResult result = search_integer(problem, {.top = 1});
    ASSERT_EQ(result.found(), least < kNever) << seed;
    if (result.found()) {
      EXPECT_DOUBLE_EQ(result.best().value, least) << seed;
      evaluated += result.counts.evaluated;
      all += static_cast<int64_t>(problem.all().size());
    } else {
      ++without;
    }
  }
  EXPECT_GT(without, 0);          // some problems must be infeasible, for branch and bound and for enumeration
  EXPECT_LT(evaluated, all / 2);  // pruning must avoid at least half of the estimates
}

TEST(SearchMethods, TopChoicesMatchEnumeration) {
  const RandomProblem problem(7, kSizes);
  std::vector<RankedChoice> all;
  for (const Choice& choice : problem.all())
    all.push_back({choice, problem.choice_value(choice).value, problem.choice_value(choice).time_s,
                   problem.choice_memory(choice).memory_bytes});
  std::sort(all.begin(), all.end(), better);
  for (const char* name : {"exhaustive", "dynamic", "integer"}) {
    const SearchResult result = search_method(name).run(problem, {.top = 25});
    ASSERT_EQ(result.top.size(), 25u);
    for (size_t i = 0; i < 25; ++i) EXPECT_EQ(result.top[i].choice, all[i].choice) << name << " place " << i;
  }
}

TEST(SearchMethods, ParetoFrontMatchesEnumeration) {
  for (uint64_t seed = 20; seed < 24; ++seed) {
    const RandomProblem problem(seed, kSizes);
    std::vector<RankedChoice> all;
    for (const Choice& choice : problem.all())
      all.push_back({choice, 0, problem.choice_value(choice).time_s, problem.choice_memory(choice).memory_bytes});
    std::vector<std::pair<double, double>> front;
    for (const RankedChoice& one : all) {
      const bool dominated = std::any_of(all.begin(), all.end(), [&](const RankedChoice& other) {
        return other.time_s <= one.time_s && other.memory_bytes <= one.memory_bytes &&
               (other.time_s < one.time_s || other.memory_bytes < one.memory_bytes);
      });
      if (!dominated) front.emplace_back(one.time_s, one.memory_bytes);
    }
    std::sort(front.begin(), front.end());
    for (const char* name : {"exhaustive", "dynamic", "integer"}) {
      const SearchResult result = search_method(name).run(problem, {.top = 1, .pareto = true});
      std::vector<std::pair<double, double>> got;
      for (const RankedChoice& one : result.front) got.emplace_back(one.time_s, one.memory_bytes);
      EXPECT_EQ(got, front) << name << " seed " << seed;
    }
  }
}

TEST(SearchMethods, ResultIsIndependentOfThreads) {
  const RandomProblem problem(3, kSizes);
  const SearchResult one = search_exhaustive(problem, {.pareto = true});
  for (int threads = 2; threads <= 5; ++threads) {
    const SearchResult many = search_exhaustive(problem, {.pareto = true, .threads = threads});
    ASSERT_EQ(many.top.size(), one.top.size());
    for (size_t i = 0; i < one.top.size(); ++i) EXPECT_EQ(many.top[i].choice, one.top[i].choice);
    ASSERT_EQ(many.front.size(), one.front.size());
    EXPECT_EQ(many.counts.considered, one.counts.considered);
  }
}

TEST(SearchMethods, ResultIsDeterminedByTheSeed) {
  const RandomProblem problem(5, {6, 7, 8, 6, 7, 5, 6, 5});
  for (const char* name : {"evolution", "annealing", "gradient"}) {
    const auto run = [&](uint64_t seed) {
      return search_method(name).run(problem, {.seed = seed, .evaluations = 2000});
    };
    const SearchResult a = run(1), again = run(1), other = run(2);
    EXPECT_EQ(a.counts.considered, again.counts.considered) << name;
    EXPECT_EQ(a.best().choice, again.best().choice) << name;
    EXPECT_NE(a.counts.evaluated, other.counts.evaluated) << name;
  }
}

TEST(SearchMethods, ReturnNoChoiceIfNothingFits) {
  const RandomProblem problem(5, kSizes, 0.1, 0.0);
  for (const SearchMethod& method : search_methods()) {
    const SearchResult result = method.run(problem, {});
    EXPECT_FALSE(result.found()) << method.name;
    EXPECT_GT(result.counts.too_large, 0) << method.name;
  }
}

TEST(SearchMethods, ErrorForUnknownMethodSuggestsNearest) {
  try {
    search_method("anealing");
    FAIL();
  } catch (const UsageError& error) {
    EXPECT_NE(std::string(error.what()).find("did you mean \"annealing\""), std::string::npos) << error.what();
  }
}

}  // namespace
}  // namespace esp::plan
