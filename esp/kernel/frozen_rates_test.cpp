#include "esp/kernel/frozen_rates.h"

#include <gtest/gtest.h>

#include <cmath>
#include <vector>

namespace esp::kernel {
namespace {

TEST(FrozenRates, MatchAdamAndAreZeroWhereVarianceIsZero) {
  std::vector<double> v(70000), rate(v.size(), -1), mask(v.size(), -1);
  for (size_t i = 0; i < v.size(); ++i) v[i] = i % 3 == 0 ? 0 : 1e-6 * static_cast<double>(i);
  frozen_rates(rate.data(), mask.data(), v.data(), 1e-8, static_cast<int64_t>(v.size()), DType::f64, {});
  for (size_t i = 0; i < v.size(); ++i) {
    ASSERT_EQ(mask[i], i % 3 == 0 ? 0 : 1) << i;
    ASSERT_EQ(rate[i], i % 3 == 0 ? 0 : 1 / (std::sqrt(v[i]) + 1e-8)) << i;
  }
  const float one = 4;
  float r = 0, m = 0;
  frozen_rates(&r, &m, &one, 0.5, 1, DType::f32, {});
  EXPECT_EQ(r, 0.4f);
  EXPECT_EQ(m, 1);
}

}  // namespace
}  // namespace esp::kernel
