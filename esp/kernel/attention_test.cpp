// Compares the tiled attention kernels with the reference kernels (ref) on every instruction set, and with the
// definition of attention and finite differences.
#include "esp/kernel/attention.h"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <limits>
#include <string>
#include <vector>

#include <gtest/gtest.h>
#include <hwy/targets.h>

#include "esp/base/rng.h"
#include "esp/kernel/elements.h"

namespace esp::kernel {
namespace {

constexpr uint64_t kSeed = 11;

// Buffers of one attention call in type T. If `gap` is not 0, there are gaps between tokens and between sequences. In
// output buffers the gaps hold the value 77 (the mark), which must not change.
template <typename T>
struct Problem {
  using A = Accumulator<T>;
  AttentionShape shape;
  std::vector<int32_t> lengths;
  std::vector<T> q, k, v, d_o, o, dq, dk, dv;
  std::vector<A> lse;

  static DType dtype() {
    if constexpr (std::is_same_v<T, double>) return DType::f64;
    if constexpr (std::is_same_v<T, float>) return DType::f32;
    return std::is_same_v<T, BFloat16> ? DType::bf16 : DType::f16;
  }
  static T mark() { return static_cast<T>(static_cast<A>(77)); }

  explicit Problem(AttentionShape s, int64_t gap = 0) : shape(s) {
    auto stride = [&](int64_t tokens, int64_t heads) {
      const int64_t token = heads * s.head_dim + gap;
      return AttentionStride{tokens * token + 3 * gap, token};
    };
    shape.q = shape.o = stride(s.num_queries, s.heads);
    shape.k = shape.v = stride(s.num_keys, s.kv_heads);
    shape.o.token += gap;
    shape.o.batch += gap * s.num_queries;
    fill(q, s.batch * shape.q.batch, 1);
    fill(k, s.batch * shape.k.batch, 2);
    fill(v, s.batch * shape.v.batch, 3);
    fill(d_o, s.batch * shape.o.batch, 4);
    o.assign(d_o.size(), mark());
    dq.assign(q.size(), mark());
    dk.assign(k.size(), mark());
    dv.assign(v.size(), mark());
    lse.assign(s.batch * s.heads * s.num_queries, 77);
  }
  static void fill(std::vector<T>& to, int64_t count, uint64_t purpose) {
    to.resize(count);
    for (int64_t i = 0; i < count; ++i) to[i] = static_cast<T>(static_cast<A>(4 * random_unit(kSeed, purpose, i) - 2));
  }
  void set_lengths(std::vector<int32_t> to) {
    lengths = std::move(to);
    shape.key_lengths = lengths.data();
  }
  void forward(int num_threads = 1) {
    device::ThreadPool pool(num_threads);
    attention_forward(o.data(), lse.data(), q.data(), k.data(), v.data(), shape, dtype(), {.pool = &pool});
  }
  void backward(int num_threads = 1) {
    device::ThreadPool pool(num_threads);
    std::vector<std::byte> workspace(attention_workspace_bytes(shape, dtype(), {.pool = &pool}) + 8, std::byte{0x5a});
    attention_backward(dq.data(), dk.data(), dv.data(), d_o.data(), o.data(), q.data(), k.data(), v.data(), lse.data(),
                       workspace.data(), shape, dtype(), {.pool = &pool});
    for (size_t i = workspace.size() - 8; i < workspace.size(); ++i) EXPECT_EQ(workspace[i], std::byte{0x5a});
  }
  void ref_forward() { ref::attention_forward(o.data(), lse.data(), q.data(), k.data(), v.data(), shape, dtype()); }
  void ref_backward() {
    ref::attention_backward(dq.data(), dk.data(), dv.data(), d_o.data(), o.data(), q.data(), k.data(), v.data(),
                            lse.data(), shape, dtype());
  }
  std::string name() const {
    return fmt::format("{} B{} Tq{} Tk{} H{}/{} D{}{}{} dropout {} offset {}", name_of(dtype()), shape.batch,
                       shape.num_queries, shape.num_keys, shape.heads, shape.kv_heads, shape.head_dim,
                       shape.causal ? " causal" : "", shape.key_lengths ? " padded" : "", shape.dropout,
                       shape.causal_offset);
  }
};

AttentionShape shape_of(int64_t batch, int64_t queries, int64_t keys, int64_t heads, int64_t kv_heads, int64_t head_dim,
                        bool causal) {
  AttentionShape s;
  s.batch = batch, s.num_queries = queries, s.num_keys = keys;
  s.heads = heads, s.kv_heads = kv_heads, s.head_dim = head_dim;
  s.causal = causal;
  s.scale = 1 / std::sqrt(static_cast<double>(head_dim));
  s.key = {.seed = 5, .purpose = uint64_t{7} << 33};
  return s;
}

// Gap marks and infinities must be equal. Other values may differ by `tolerance` times the largest element.
template <typename T>
void expect_close(const std::vector<T>& got, const std::vector<T>& want, double tolerance, const std::string& what) {
  ASSERT_EQ(got.size(), want.size());
  auto value = [](T x) { return static_cast<double>(static_cast<Accumulator<T>>(x)); };
  // At least 0.5: inputs are near 1, so even a result near 0 has the rounding error of values near 1.
  double largest = 0.5;
  for (T x : want)
    if (std::isfinite(value(x)) && value(x) != 77) largest = std::max(largest, std::abs(value(x)));
  for (size_t i = 0; i < got.size(); ++i) {
    const double g = value(got[i]), w = value(want[i]);
    if (g == w) continue;
    ASSERT_LE(std::abs(g - w), tolerance * largest) << what << "[" << i << "]: " << g << ", ref has " << w;
  }
}

template <typename T>
double tolerance() {
  if constexpr (std::is_same_v<T, double>) return 1e-13;
  if constexpr (std::is_same_v<T, float>) return 4e-6;
  return std::is_same_v<T, BFloat16> ? 1e-2 : 2e-3;
}

template <typename T>
void compare_to_ref(Problem<T>& problem, double slack = 1) {
  Problem<T> want = problem;
  if (want.shape.key_lengths) want.shape.key_lengths = want.lengths.data();
  problem.forward();
  want.ref_forward();
  expect_close(problem.o, want.o, slack * tolerance<T>(), "o of " + problem.name());
  expect_close(problem.lse, want.lse, std::is_same_v<T, double> ? 1e-14 : 1e-6, "lse of " + problem.name());
  problem.o = want.o;  // both backward functions must read the same rounded o
  problem.lse = want.lse;
  problem.backward();
  want.ref_backward();
  expect_close(problem.dq, want.dq, 2 * slack * tolerance<T>(), "dq of " + problem.name());
  expect_close(problem.dk, want.dk, 2 * slack * tolerance<T>(), "dk of " + problem.name());
  expect_close(problem.dv, want.dv, 2 * slack * tolerance<T>(), "dv of " + problem.name());
}

std::vector<AttentionShape> many_shapes() {
  std::vector<AttentionShape> shapes;
  for (bool causal : {false, true}) {
    shapes.push_back(shape_of(2, 65, 65, 2, 2, 64, causal));
    shapes.push_back(shape_of(1, 130, 130, 1, 1, 32, causal));
    shapes.push_back(shape_of(2, 1, 70, 4, 2, 64, causal));
    shapes.push_back(shape_of(1, 70, 150, 4, 1, 16, causal));
    shapes.push_back(shape_of(1, 9, 3, 2, 1, 5, causal));
    shapes.push_back(shape_of(1, 33, 67, 1, 1, 80, causal));
    shapes.push_back(shape_of(1, 20, 20, 2, 2, 128, causal));
    shapes.push_back(shape_of(1, 5, 4, 1, 1, 1, causal));
    shapes.push_back(shape_of(1, 3, 200, 6, 2, 24, causal));
  }
  for (int64_t offset : {1, 40, 64, 100, -3, -70}) {
    shapes.push_back(shape_of(1, 75, 140, 2, 1, 32, true));
    shapes.back().causal_offset = offset;
  }
  for (int64_t offset : {69, 30}) {
    shapes.push_back(shape_of(2, 1, 70, 4, 4, 64, true));
    shapes.back().causal_offset = offset;
  }
  const size_t plain = shapes.size();
  for (size_t i = 0; i < plain; i += 3) {
    shapes.push_back(shapes[i]);
    shapes.back().dropout = 0.25;
  }
  return shapes;
}

class AttentionOnTarget : public testing::TestWithParam<int64_t> {
 protected:
  void SetUp() override { hwy::SetSupportedTargetsForTest(GetParam()); }
  void TearDown() override { hwy::SetSupportedTargetsForTest(0); }
};

template <typename T>
void compare_many_shapes() {
  for (const AttentionShape& shape : many_shapes()) {
    Problem<T> problem(shape, 3);
    compare_to_ref(problem);
    if (testing::Test::HasFatalFailure()) return;
    Problem<T> padded(shape);
    std::vector<int32_t> lengths;
    for (int64_t b = 0; b < shape.batch; ++b) lengths.push_back(static_cast<int32_t>((7 + 11 * b) % shape.num_keys));
    padded.set_lengths(lengths);
    compare_to_ref(padded);
    if (testing::Test::HasFatalFailure()) return;
  }
}

TEST_P(AttentionOnTarget, MatchesRefInF32) {
  compare_many_shapes<float>();
}
TEST_P(AttentionOnTarget, MatchesRefInF64) {
  compare_many_shapes<double>();
}
TEST_P(AttentionOnTarget, MatchesRefInBf16) {
  compare_many_shapes<BFloat16>();
}
TEST_P(AttentionOnTarget, MatchesRefInF16) {
  compare_many_shapes<Float16>();
}

INSTANTIATE_TEST_SUITE_P(Targets, AttentionOnTarget, testing::ValuesIn(hwy::SupportedAndGeneratedTargets()),
                         [](const auto& target) { return std::string(hwy::TargetName(target.param)); });

// Compares the gradient of Σ d_o∘o with central differences, along a random direction of all inputs.
void expect_slope(Problem<double> problem) {
  auto loss = [&](double step) {
    Problem<double> moved = problem;
    if (moved.shape.key_lengths) moved.shape.key_lengths = moved.lengths.data();
    auto move = [&](std::vector<double>& x, uint64_t purpose) {
      for (size_t i = 0; i < x.size(); ++i) x[i] += step * (2 * random_unit(kSeed, purpose, i) - 1);
    };
    move(moved.q, 21);
    move(moved.k, 22);
    move(moved.v, 23);
    moved.forward();
    double sum = 0;
    for (size_t i = 0; i < moved.o.size(); ++i) sum += moved.o[i] * moved.d_o[i];
    return sum;
  };
  problem.forward();
  problem.backward();
  double slope = 0, size = 0;
  auto along = [&](const std::vector<double>& gradient, uint64_t purpose) {
    for (size_t i = 0; i < gradient.size(); ++i) {
      slope += gradient[i] * (2 * random_unit(kSeed, purpose, i) - 1);
      size += std::abs(gradient[i]);
    }
  };
  along(problem.dq, 21);
  along(problem.dk, 22);
  along(problem.dv, 23);
  const double h = 1e-4;
  const double difference = (8 * (loss(h) - loss(-h)) - (loss(2 * h) - loss(-2 * h))) / (12 * h);
  EXPECT_NEAR(difference / slope, 1, 1e-6) << problem.name() << " size " << size;
}

TEST(Attention, BackwardMatchesFiniteDifferences) {
  for (const AttentionShape& shape : many_shapes()) {
    if (shape.causal && shape.causal_offset < -10) continue;  // queries have no visible keys and therefore no gradient
    expect_slope(Problem<double>(shape));
    Problem<double> padded(shape);
    padded.set_lengths(std::vector<int32_t>(shape.batch, static_cast<int32_t>(shape.num_keys / 2 + 1)));
    expect_slope(padded);
  }
}

template <typename T>
void expect_same_bits_with_any_threads(const AttentionShape& shape) {
  Problem<T> one(shape);
  one.forward(1);
  one.backward(1);
  for (int num_threads : {2, 3, 4, 7, 16}) {
    Problem<T> many(shape);
    many.forward(num_threads);
    many.backward(num_threads);
    auto same = [&](const auto& a, const auto& b, const char* what) {
      EXPECT_EQ(std::memcmp(a.data(), b.data(), a.size() * sizeof(a[0])), 0)
          << what << " of " << one.name() << " with " << num_threads << " threads";
    };
    same(many.o, one.o, "o");
    same(many.lse, one.lse, "lse");
    same(many.dq, one.dq, "dq");
    same(many.dk, one.dk, "dk");
    same(many.dv, one.dv, "dv");
  }
}

TEST(Attention, ResultsAreBitIdenticalForAnyNumberOfThreads) {
  for (bool causal : {false, true}) {
    expect_same_bits_with_any_threads<float>(shape_of(1, 300, 300, 2, 1, 32, causal));
    expect_same_bits_with_any_threads<float>(shape_of(3, 100, 170, 2, 2, 64, causal));
    expect_same_bits_with_any_threads<double>(shape_of(1, 200, 200, 1, 1, 24, causal));
    expect_same_bits_with_any_threads<BFloat16>(shape_of(2, 130, 130, 3, 3, 16, causal));
    expect_same_bits_with_any_threads<float>(shape_of(1, 1, 500, 4, 2, 64, causal));
  }
}

TEST(Attention, FullyMaskedQueryHasZeroOutputAndZeroGradient) {
  AttentionShape shape = shape_of(2, 70, 70, 2, 2, 32, true);
  shape.causal_offset = -5;
  Problem<float> problem(shape);
  problem.set_lengths({0, 70});
  problem.forward();
  problem.backward();
  auto query_is_zero = [&](const std::vector<float>& x, const AttentionStride& stride, int64_t b, int64_t i) {
    return std::all_of(x.begin() + b * stride.batch + i * stride.token,
                       x.begin() + b * stride.batch + i * stride.token + 64, [](float e) { return e == 0; });
  };
  for (int64_t i = 0; i < 70; ++i) {
    EXPECT_TRUE(query_is_zero(problem.o, problem.shape.o, 0, i));
    EXPECT_TRUE(query_is_zero(problem.dq, problem.shape.q, 0, i));
    EXPECT_TRUE(query_is_zero(problem.dk, problem.shape.k, 0, i));
    EXPECT_TRUE(query_is_zero(problem.dv, problem.shape.v, 0, i));
    EXPECT_EQ(problem.lse[i], -std::numeric_limits<float>::infinity());
    EXPECT_EQ(query_is_zero(problem.o, problem.shape.o, 1, i), i < 5) << i;
    if (i != 5) {  // query 5 sees one key: its probability is constant, so its gradient is only rounding error
      EXPECT_EQ(query_is_zero(problem.dq, problem.shape.q, 1, i), i < 5) << i;
    }
    EXPECT_EQ(query_is_zero(problem.dv, problem.shape.v, 1, i), i > 64) << i;
  }
}

TEST(Attention, FutureKeysHaveZeroGradient) {
  const int64_t T = 150, D = 32;
  for (int64_t i : {0, 7, 63, 64, 100}) {
    Problem<float> problem(shape_of(1, T, T, 1, 1, D, true));
    std::fill(problem.d_o.begin(), problem.d_o.end(), 0.0f);
    std::fill_n(problem.d_o.begin() + i * D, D, 1.0f);  // only query i has an output gradient
    problem.forward();
    problem.backward();
    for (int64_t j = 0; j < T; ++j) {
      const auto at = [&](const std::vector<float>& x) {
        return std::all_of(x.begin() + j * D, x.begin() + (j + 1) * D, [](float e) { return e == 0; });
      };
      EXPECT_EQ(at(problem.dv), j > i) << i << " " << j;
      if (i > 0) {
        EXPECT_EQ(at(problem.dk), j > i) << i << " " << j;
      }
    }
  }
}

TEST(Attention, OutputIsOneWhenValuesAreOne) {
  for (bool causal : {false, true}) {
    Problem<float> problem(shape_of(2, 131, 131, 2, 2, 64, causal));
    std::fill(problem.v.begin(), problem.v.end(), 1.0f);
    problem.forward();
    for (float x : problem.o) ASSERT_NEAR(x, 1, 1e-6);
  }
}

// The transposed formula Oᵀ = Vᵀ·softmax(K·Qᵀ), with one column per query, must give the same result as the formula
// with one row per query.
TEST(Attention, MatchesFormulaWithTransposedMatrices) {
  const int64_t T = 40, D = 16;
  Problem<double> problem(shape_of(1, T, T, 1, 1, D, false));
  problem.forward();
  std::vector<double> a(T * T), out(D * T);  // a[key][query]
  for (int64_t j = 0; j < T; ++j)
    for (int64_t i = 0; i < T; ++i)
      for (int64_t d = 0; d < D; ++d) a[j * T + i] += problem.k[j * D + d] * problem.q[i * D + d] * problem.shape.scale;
  for (int64_t i = 0; i < T; ++i) {
    double sum = 0;
    for (int64_t j = 0; j < T; ++j) sum += a[j * T + i] = std::exp(a[j * T + i]);
    for (int64_t j = 0; j < T; ++j) a[j * T + i] /= sum;
  }
  for (int64_t d = 0; d < D; ++d)
    for (int64_t j = 0; j < T; ++j)
      for (int64_t i = 0; i < T; ++i) out[d * T + i] += problem.v[j * D + d] * a[j * T + i];
  for (int64_t i = 0; i < T; ++i)
    for (int64_t d = 0; d < D; ++d) EXPECT_NEAR(problem.o[i * D + d], out[d * T + i], 1e-14);
}

TEST(Attention, LargeScoresNeitherOverflowNorVanish) {
  Problem<float> problem(shape_of(1, 100, 100, 1, 1, 16, true));
  for (float& x : problem.q) x *= 1000;
  compare_to_ref(problem, 1000);  // large scores have larger rounding errors
}

TEST(Attention, PropagatesNaN) {
  Problem<float> problem(shape_of(1, 80, 80, 1, 1, 16, true));
  problem.k[3 * 16] = std::numeric_limits<float>::quiet_NaN();
  problem.forward();
  for (int64_t i = 0; i < 80; ++i) EXPECT_EQ(std::isnan(problem.o[i * 16]), i >= 3) << i;
}

// Each probability must be kept or dropped according to the random number at its dropout index in the Philox stream
// (dropout.h).
TEST(Attention, DropoutMaskMatchesPhiloxStream) {
  const int64_t T = 64;
  AttentionShape shape = shape_of(1, T, T, 2, 2, T, false);
  shape.dropout = 0.3;
  shape.first_batch = 1 << 20;  // dropout indices then need more than 32 bits
  Problem<float> problem(shape);
  // All scores are equal and v is an identity matrix, so o[i][j] is the probability of key j after dropout.
  std::fill(problem.q.begin(), problem.q.end(), 0.0f);
  std::fill(problem.v.begin(), problem.v.end(), 0.0f);
  for (int64_t j = 0; j < T; ++j)
    for (int64_t h = 0; h < 2; ++h) problem.v[j * problem.shape.v.token + h * T + j] = 1;
  problem.forward();
  for (int64_t h = 0; h < 2; ++h)
    for (int64_t i = 0; i < T; ++i)
      for (int64_t j = 0; j < T; ++j) {
        const auto index = static_cast<uint64_t>(((shape.first_batch * 2 + h) * T + i) * T + j);
        const auto words =
            philox({static_cast<uint32_t>(index / 4), static_cast<uint32_t>(index >> 34),
                    static_cast<uint32_t>(shape.key.purpose), static_cast<uint32_t>(shape.key.purpose >> 32)},
                   {static_cast<uint32_t>(shape.key.seed), 0});
        const double want = words[index % 4] >= 0.3 * 0x1p32 ? 1 / 0.7 / T : 0;
        ASSERT_NEAR(problem.o[i * problem.shape.o.token + h * T + j], want, 1e-7);
      }
}

}  // namespace
}  // namespace esp::kernel
