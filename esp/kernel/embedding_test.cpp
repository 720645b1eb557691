#include "esp/kernel/embedding.h"

#include "esp/kernel/test_arrays.h"

namespace esp::kernel {
namespace {

std::vector<int32_t> some_ids(int64_t count, int64_t num_rows) {
  std::vector<int32_t> ids;
  for (int64_t i = 0; i < count; ++i)  // some ids are negative and some are >= num_rows
    ids.push_back(
        static_cast<int32_t>(random_bits(5, 5, static_cast<uint64_t>(i)) % static_cast<uint64_t>(num_rows + 4)) - 2);
  return ids;
}

TEST(Embedding, LookupEqualsOneHotGemm) {
  const Threads pair(2);
  constexpr int64_t kCount = 40, kDim = 33, kRows = 11;
  const Array table = Array::random(kRows * kDim, DType::f32, 1);
  const auto ids = some_ids(kCount, kRows);
  Array y(kCount * kDim, DType::f32);
  embedding_forward(y.data(), ids.data(), table.data(), nullptr, kCount, kDim, kRows, 1, 0, DType::f32, pair);
  for (int64_t i = 0; i < kCount; ++i)
    for (int64_t c = 0; c < kDim; ++c) {
      double product = 0;
      for (int64_t v = 0; v < kRows; ++v)
        product += (v == ids[static_cast<size_t>(i)] ? 1.0 : 0.0) * table[v * kDim + c];
      ASSERT_EQ(y[i * kDim + c], product);
    }
}

TEST(Embedding, ForwardAndBackwardMatchRef) {
  const Threads pair(2);
  for_each_target([&](const std::string& target) {
    for (DType dtype : kFloating)
      for (int64_t count : {1, 12, 700})
        for (int64_t dim : {1, 30, 64, 300}) {
          constexpr int64_t kRows = 9, kPeriod = 12, kFirst = 2;
          const std::string where = fmt::format("{} {} {}x{}", target, name_of(dtype), count, dim);
          const auto ids = some_ids(count, kRows);
          const Array table = Array::random(kRows * dim, dtype, 1);
          const Array positions = Array::random((kFirst + kPeriod) * dim, dtype, 2);
          Array y(count * dim, dtype), want = y;
          for (const void* added : {static_cast<const void*>(nullptr), positions.data()}) {
            embedding_forward(y.data(), ids.data(), table.data(), added, count, dim, kRows, kPeriod, kFirst, dtype,
                              pair);
            ref::embedding_forward(want.data(), ids.data(), table.data(), added, count, dim, kRows, kPeriod, kFirst,
                                   dtype);
            EXPECT_TRUE(y.same_bits(want)) << where;
          }
          // The kernel and ref add in the order of the ids and in the same type, so results are bit-identical even for
          // repeated ids.
          Array dtable = table, dtable_want = table, dpositions = positions, dpositions_want = positions;
          const Array dy = Array::random(count * dim, dtype, 3);
          embedding_backward(dtable.data(), ids.data(), dy.data(), count, dim, kRows, dtype, pair);
          ref::embedding_backward(dtable_want.data(), ids.data(), dy.data(), count, dim, kRows, dtype);
          EXPECT_TRUE(dtable.same_bits(dtable_want)) << where;
          position_backward(dpositions.data(), dy.data(), count, dim, kPeriod, kFirst, dtype, pair);
          ref::position_backward(dpositions_want.data(), dy.data(), count, dim, kPeriod, kFirst, dtype);
          EXPECT_TRUE(dpositions.same_bits(dpositions_want)) << where;
        }
  });
}

TEST(Embedding, RepeatedIdsAccumulateWithoutLosingSmallGradients) {
  const Threads pair(2);
  constexpr int64_t kCount = 3000, kDim = 70;
  const std::vector<int32_t> ids(kCount, 4);
  for (DType dtype : kFloating) {
    Array dy(kCount * kDim, dtype), dtable(6 * kDim, dtype);
    dy.fill([](int64_t) { return 0.125; });
    embedding_backward(dtable.data(), ids.data(), dy.data(), kCount, kDim, 6, dtype, pair);
    // With rounding to 8 bits after every addition, the sum would stop growing at 32.
    for (int64_t i = 0; i < 6 * kDim; ++i) ASSERT_NEAR(dtable[i], i / kDim == 4 ? 375 : 0, 1) << name_of(dtype);
  }
}

TEST(Embedding, BackwardAccumulatesAcrossCalls) {
  const Threads alone(1);
  const std::vector<int32_t> ids = {1, 1};
  Array dy(2, DType::f32), dtable(3, DType::f32);
  dy.set(0, 2);
  dy.set(1, 3);
  for (int call = 1; call <= 2; ++call) {
    embedding_backward(dtable.data(), ids.data(), dy.data(), 2, 1, 3, DType::f32, alone);
    EXPECT_EQ(dtable[1], 5 * call);
  }
  EXPECT_EQ(dtable[0], 0);
}

}  // namespace
}  // namespace esp::kernel
