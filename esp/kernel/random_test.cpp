#include <algorithm>

#include "esp/kernel/elementwise.h"
#include "esp/kernel/test_arrays.h"

namespace esp::kernel {
namespace {

constexpr int64_t kMany = 1 << 20;

TEST(FillNormal, MatchesNormalMoments) {
  const Threads pair(2);
  std::vector<float> x(kMany);
  fill_normal(x.data(), 0, 1, 42, 7, 0, kMany, DType::f32, pair);
  double power[5] = {}, neighbours = 0, pairs = 0;
  int64_t beyond = 0;
  for (size_t i = 0; i < x.size(); ++i) {
    double p = 1;
    for (double& sum : power) {
      sum += p / kMany;
      p *= x[i];
    }
    if (i) neighbours += double{x[i]} * x[i - 1] / kMany;
    // The two numbers of a pair share a radius, but must be independent
    if (i % 2) pairs += double{x[i]} * x[i] * x[i - 1] * x[i - 1] / kMany * 2;
    beyond += std::abs(x[i]) > 3;
  }
  const double deviation = 1 / std::sqrt(static_cast<double>(kMany));
  EXPECT_NEAR(power[1], 0, 5 * deviation);
  EXPECT_NEAR(power[2], 1, 5 * std::sqrt(2) * deviation);
  EXPECT_NEAR(power[3], 0, 5 * std::sqrt(15) * deviation);
  EXPECT_NEAR(power[4], 3, 5 * std::sqrt(96) * deviation);
  EXPECT_NEAR(neighbours, 0, 5 * deviation);
  EXPECT_NEAR(pairs, 1, 5 * std::sqrt(16) * deviation);
  EXPECT_NEAR(static_cast<double>(beyond) / kMany, 0.0026998, 5 * std::sqrt(0.0027) * deviation);
}

// Kolmogorov–Smirnov test: bounds the largest distance between the sampled and the true distribution function.
TEST(FillNormal, MatchesNormalDistribution) {
  const Threads pair(2);
  std::vector<float> x(kMany);
  fill_normal(x.data(), 0, 1, 43, 7, 0, kMany, DType::f32, pair);
  std::sort(x.begin(), x.end());
  double distance = 0;
  for (size_t i = 0; i < x.size(); ++i) {
    const double below = 0.5 * std::erfc(-double{x[i]} / std::sqrt(2.0));
    distance = std::max(distance, std::abs(below - static_cast<double>(i) / kMany));
  }
  // a correct sample exceeds this bound for one seed in a thousand
  EXPECT_LT(distance * std::sqrt(static_cast<double>(kMany)), 1.95);
}

TEST(FillUniform, IsUniformBetweenBounds) {
  const Threads pair(2);
  std::vector<float> x(kMany);
  fill_uniform(x.data(), -2, 6, 42, 8, 0, kMany, DType::f32, pair);
  std::vector<int> histogram(64);
  double sum = 0, square = 0;
  for (float value : x) {
    ASSERT_GE(value, -2);
    ASSERT_LE(value, 6);
    sum += value;
    square += (value - 2.0) * (value - 2.0);
    ++histogram[std::min<size_t>(63, static_cast<size_t>((value + 2) * 8))];
  }
  EXPECT_NEAR(sum / kMany, 2, 5 * std::sqrt(64.0 / 12 / kMany));
  EXPECT_NEAR(square / kMany, 64.0 / 12, 0.05);
  double chi = 0;
  for (int count : histogram) chi += std::pow(count - kMany / 64.0, 2) / (kMany / 64.0);
  EXPECT_NEAR(chi, 63, 5 * std::sqrt(2 * 63.0));
}

TEST(RandomFills, ElementDependsOnlyOnGlobalIndex) {
  // the Philox counters of this range (global index / 4) pass 2^32
  constexpr int64_t kFirst = (int64_t{1} << 34) - 1501;
  for (DType dtype : kFloating) {
    Array normal, uniform;
    for_each_target([&](const std::string& target) {
      Array whole(3000, dtype), flat(3000, dtype);
      fill_normal(whole.data(), 0.5, 2, 9, 10, kFirst, 3000, dtype, Threads(3));
      fill_uniform(flat.data(), -1, 1, 9, 10, kFirst, 3000, dtype, Threads(3));
      if (normal.count() == 0) normal = whole, uniform = flat;
      EXPECT_TRUE(whole.same_bits(normal)) << target << ' ' << name_of(dtype);
      EXPECT_TRUE(flat.same_bits(uniform)) << target << ' ' << name_of(dtype);
      for (int64_t first : {1, 2, 3, 1027}) {
        Array piece(101, dtype);
        fill_normal(piece.data(), 0.5, 2, 9, 10, kFirst + first, 101, dtype, Threads(1));
        for (int64_t i = 0; i < 101; ++i) ASSERT_EQ(piece[i], whole[first + i]) << target << ' ' << first;
        EXPECT_TRUE(piece.intact());
      }
    });
  }
}

TEST(RandomFills, MatchReferenceFormula) {
  const Threads alone(1);
  Array normal(40, DType::f64), uniform(40, DType::f64);
  fill_normal(normal.data(), 0, 1, 5, 6, 0, 40, DType::f64, alone);
  fill_uniform(uniform.data(), 0, 1, 5, 6, 0, 40, DType::f64, alone);
  for (uint32_t i = 0; i < 40; ++i) {
    const auto words = philox({i / 4, 0, 6, 0}, {5, 0});
    EXPECT_EQ(uniform[i], (words[i % 4] >> 8) * 0x1p-24);
    const double u = ((words[i % 4 / 2 * 2] >> 1) + 0.5) * 0x1p-31, v = words[i % 4 / 2 * 2 + 1] * 0x1p-32;
    const double angle = 2 * M_PI * v;
    EXPECT_NEAR(normal[i], std::sqrt(-2 * std::log(u)) * (i % 2 ? std::sin(angle) : std::cos(angle)), 2e-6);
  }
}

TEST(RandomFills, DifferentSeedsOrPurposesGiveDifferentValues) {
  const Threads alone(1);
  Array a(100, DType::f32), b = a, c = a;
  fill_normal(a.data(), 0, 1, 1, 1, 0, 100, DType::f32, alone);
  fill_normal(b.data(), 0, 1, 2, 1, 0, 100, DType::f32, alone);
  fill_normal(c.data(), 0, 1, 1, 2, 0, 100, DType::f32, alone);
  EXPECT_FALSE(a.same_bits(b));
  EXPECT_FALSE(a.same_bits(c));
}

}  // namespace
}  // namespace esp::kernel
