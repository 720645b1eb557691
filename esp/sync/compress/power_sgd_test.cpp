#include "esp/sync/compress/power_sgd.h"

#include <mutex>

#include "esp/base/error.h"
#include "esp/sync/compress/testing.h"

namespace esp::sync {
namespace {

// A matrix with known singular values: Σ_k sizes[k]·u_k·v_kᵀ, with orthonormal u_k and v_k from a cosine basis.
Values<float> matrix_of(int64_t rows, int64_t cols, const std::vector<double>& sizes) {
  auto wave = [](int64_t n, size_t k, int64_t i) {
    return std::sqrt(2.0 / static_cast<double>(n)) *
           std::cos(M_PI * (static_cast<double>(i) + 0.5) * static_cast<double>(k + 1) / static_cast<double>(n));
  };
  Values<float> m(static_cast<size_t>(rows * cols));
  for (int64_t i = 0; i < rows; ++i)
    for (int64_t j = 0; j < cols; ++j) {
      double sum = 0;
      for (size_t k = 0; k < sizes.size(); ++k) sum += sizes[k] * wave(rows, k, i) * wave(cols, k, j);
      m[static_cast<size_t>(i * cols + j)] = static_cast<float>(sum);
    }
  return m;
}

PowerSgdSetup one_matrix(RankResources& place, int64_t rows, int64_t cols, int64_t rank) {
  PowerSgdSetup setup;
  setup.context = place.context;
  setup.count = rows * cols;
  setup.parts = {{0, rows, cols}};
  setup.rank = rank;
  setup.seed = 17;
  return setup;
}

TEST(PowerSgd, RecoversALowRankMatrixInOneStep) {
  for (const std::vector<double>& sizes : {std::vector<double>{3, 2, 1}, {3, 1e-3}, {1e-4, 1e-5, 1e-6}, {}}) {
    RankResources place;
    const auto feedback = make_power_sgd(one_matrix(place, 60, 40, 3));
    const Values<float> m = matrix_of(60, 40, sizes);
    Values<float> out(m.size());
    for (int step = 0; step < 3; ++step) {
      feedback->exchange(out.data(), m.data());
      EXPECT_LE(distance2(out, m), 1e-10 * norm2(m)) << sizes.size() << ' ' << step;
    }
  }
}

TEST(PowerSgd, ConvergesToTheBestApproximationOfAConstantMatrix) {
  RankResources place;
  const auto feedback = make_power_sgd(one_matrix(place, 60, 40, 2));
  const Values<float> m = matrix_of(60, 40, {4, 3, 1, 0.5}), best = matrix_of(60, 40, {4, 3});
  Values<float> out(m.size());
  double first = 0;
  for (int step = 0; step < 30; ++step) {
    const tensor::Tensor error = feedback->state()[0].values;
    std::memset(error.data(), 0, error.bytes());  // starts each step without residual, because the matrix is constant
    feedback->exchange(out.data(), m.data());
    if (step == 0) first = distance2(out, best);
  }
  EXPECT_GT(first, 1e-3);
  EXPECT_LT(distance2(out, best), 1e-9);
}

TEST(PowerSgd, ResultIsEqualOnAllRanksAndResidualIsKept) {
  constexpr int64_t kCount = 60 * 40 + 7 + 30 * 50 + 5;
  const std::vector<MatrixPart> parts = {{0, 60, 40}, {60 * 40 + 7, 30, 50}, {60 * 40 + 7 + 30 * 50, 1, 5}};
  const PowerSgdCounts counts = power_sgd_counts(kCount, parts, 4);
  EXPECT_EQ(counts.first, 4 * 60 + 7 + 4 * 30 + 5);
  EXPECT_EQ(counts.second, 4 * 40 + 4 * 50);
  for (int size : {1, 2, 4}) {
    std::vector<Values<float>> results(static_cast<size_t>(size)), errors(results);
    with_ranks_of(size, [&](comm::Communicator& comm) {
      RankResources place;
      PowerSgdSetup setup;
      setup.ranks = &comm;
      setup.context = place.context;
      setup.count = kCount;
      setup.parts = parts;
      setup.ordered = true;
      const auto feedback = make_power_sgd(setup);
      Values<float> out(kCount), total(kCount);
      for (uint64_t step = 0; step < 4; ++step) {
        feedback->exchange(out.data(), normal_values(kCount, 10 * step + static_cast<uint64_t>(comm.rank())).data());
        for (size_t i = 0; i < out.size(); ++i) total[i] += out[i];
      }
      uint64_t due = 0;
      for (int64_t count : {counts.first, counts.second}) {
        const auto chunk = comm::chunk_of(static_cast<size_t>(count), size, comm.rank()).count;
        due += 4 * 4 * (static_cast<size_t>(count) - chunk + static_cast<size_t>(size - 1) * chunk);
      }
      EXPECT_EQ(bytes_sent_by(comm), size == 1 ? 0 : due);
      results[static_cast<size_t>(comm.rank())] = total;
      const auto error = feedback->state()[0].values.span<float>();
      errors[static_cast<size_t>(comm.rank())].assign(error.begin(), error.end());
    });
    for (const auto& other : results) EXPECT_TRUE(same_bits(other, results[0])) << size;
    // The values sent plus the residuals must equal the inputs.
    Values<double> given(kCount), accounted(results[0].begin(), results[0].end());
    for (int rank = 0; rank < size; ++rank) {
      for (uint64_t step = 0; step < 4; ++step) {
        const Values<float> g = normal_values(kCount, 10 * step + static_cast<uint64_t>(rank));
        for (size_t i = 0; i < given.size(); ++i) given[i] += static_cast<double>(g[i]) / size;
      }
      for (size_t i = 0; i < given.size(); ++i)
        accounted[i] += static_cast<double>(errors[static_cast<size_t>(rank)][i]) / size;
    }
    for (size_t i = 0; i < given.size(); ++i) ASSERT_NEAR(accounted[i], given[i], 2e-5) << size << ' ' << i;
  }
}

TEST(PowerSgd, RecoversAfterAZeroGradient) {
  RankResources place;
  const auto feedback = make_power_sgd(one_matrix(place, 60, 40, 3));
  const Values<float> m = matrix_of(60, 40, {3, 2, 1}), zeros(m.size());
  Values<float> out(m.size());
  feedback->exchange(out.data(), zeros.data());
  EXPECT_EQ(norm2(out), 0);
  feedback->exchange(out.data(), m.data());
  EXPECT_LE(distance2(out, m), 1e-10 * norm2(m));
}

TEST(PowerSgd, LeavesSmallMatricesUncompressedAndRejectsInvalidParts) {
  // sent uncompressed, because r(a + b)·2 = 1·(4 + 4)·2 ≥ a·b = 16
  EXPECT_EQ(power_sgd_counts(16, {{0, 4, 4}}, 1).first, 16);
  EXPECT_EQ(power_sgd_counts(25, {{0, 5, 5}}, 1).first, 5);
  EXPECT_THROW(power_sgd_counts(24, {{0, 5, 5}}, 1), UsageError);
  EXPECT_THROW(power_sgd_counts(99, {{0, 5, 5}, {24, 5, 5}}, 1), UsageError);
  EXPECT_THROW(power_sgd_counts(25, {{0, 5, 5}}, 0), UsageError);
}

}  // namespace
}  // namespace esp::sync
