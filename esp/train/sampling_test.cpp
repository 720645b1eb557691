// Tests how the next token is sampled: greedy, temperature, top-k, top-p.
#include "esp/train/sampling.h"

#include <gtest/gtest.h>

#include <cmath>
#include <set>

namespace esp::train {
namespace {

const std::vector<double> kLogits = {0.5, 2, -1, 2, 1, 0};

std::vector<int> counted(const SamplingOptions& options, int draws) {
  std::vector<int> times(kLogits.size());
  for (int i = 0; i < draws; ++i)
    ++times[static_cast<size_t>(choose_token(kLogits, options, static_cast<uint64_t>(i)))];
  return times;
}

TEST(Sampling, GreedyChoosesMostLikelyAndFirstOfEqualTokens) {
  SamplingOptions options;
  options.temperature = 0;
  for (uint64_t position = 0; position < 20; ++position) EXPECT_EQ(choose_token(kLogits, options, position), 1);
}

TEST(Sampling, DrawsTokensWithSoftmaxFrequencies) {
  constexpr int kDraws = 20'000;
  for (const double temperature : {0.5, 1.0, 3.0}) {
    double total = 0, sum = 0;
    for (const double logit : kLogits) total += std::exp(logit / temperature);
    SamplingOptions options;
    options.temperature = temperature;
    const std::vector<int> times = counted(options, kDraws);
    for (size_t i = 0; i < kLogits.size(); ++i) {
      const double p = std::exp(kLogits[i] / temperature) / total;
      sum += p;
      // The limit is five standard deviations. The draws are the same in every run of the test.
      EXPECT_NEAR(times[i] / double{kDraws}, p, 5 * std::sqrt(p * (1 - p) / kDraws)) << temperature << ' ' << i;
    }
    EXPECT_NEAR(sum, 1, 1e-14);
  }
}

TEST(Sampling, TopKAndTopPChooseOnlyMostLikelyTokens) {
  const auto chosen = [](const SamplingOptions& options) {
    std::set<size_t> seen;
    const std::vector<int> times = counted(options, 3000);
    for (size_t i = 0; i < times.size(); ++i)
      if (times[i] > 0) seen.insert(i);
    return seen;
  };
  SamplingOptions options;
  options.top_k = 1;
  EXPECT_EQ(chosen(options), (std::set<size_t>{1}));
  options.top_k = 3;
  EXPECT_EQ(chosen(options), (std::set<size_t>{1, 3, 4}));
  options.top_k = 0;
  options.top_p = 0.6;  // each of the two most likely tokens has a probability of 0.34
  EXPECT_EQ(chosen(options), (std::set<size_t>{1, 3}));
  options.top_p = 1;
  EXPECT_EQ(chosen(options).size(), kLogits.size());
}

TEST(Sampling, ChoosesSameTokenForSameSeedAndPosition) {
  SamplingOptions options, other;
  other.seed = 2;
  int differ = 0;
  for (uint64_t position = 0; position < 100; ++position) {
    const int32_t token = choose_token(kLogits, options, position);
    EXPECT_EQ(choose_token(kLogits, options, position), token);
    differ += choose_token(kLogits, other, position) != token;
  }
  EXPECT_GT(differ, 20);
}

}  // namespace
}  // namespace esp::train
