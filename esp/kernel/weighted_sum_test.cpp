#include "esp/kernel/weighted_sum.h"

#include "esp/kernel/test_arrays.h"

namespace esp::kernel {
namespace {

// The order of the sum is part of the definition, so results must be bit-identical to a loop.
TEST(WeightedSum, MatchesLoopBitForBitForAnyTypeAndLength) {
  for (const DType dtype : kFloating)
    for (const int64_t count : {1, 7, 64, 1000, 20'011})
      for (const size_t num_terms : {1u, 2u, 3u, 5u}) {
        std::vector<Array> x;
        std::vector<WeightedTerm> terms;
        for (size_t k = 0; k < num_terms; ++k) x.push_back(Array::random(count, dtype, 10 + k));
        for (size_t k = 0; k < num_terms; ++k) terms.push_back({x[k].data(), 1.0 / static_cast<double>(3 + k)});
        Array wanted(count, dtype);
        ref::weighted_sum(wanted.data(), terms, count, dtype);
        weighted_sum(x.back().data(), terms, count, dtype, {});  // y overwrites the last term
        EXPECT_EQ(std::memcmp(x.back().data(), wanted.data(), static_cast<size_t>(count) * size_of(dtype)), 0)
            << name_of(dtype) << ", " << count << " elements, " << num_terms << " terms";
      }
}

}  // namespace
}  // namespace esp::kernel
