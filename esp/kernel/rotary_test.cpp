#include <array>
#include <vector>

#include "esp/kernel/arrays_for_tests.h"
#include "esp/kernel/embedding.h"

namespace esp::kernel {
namespace {

TEST(Rotary, IsThatOfRefAndLeavesTheRestOfARowAlone) {
  const Threads pair(2);
  on_every_target([&](const std::string& target) {
    for (DType dtype : kFloating)
      for (int64_t head_dim : {2, 6, 32, 64, 130})
        for (int64_t rows : {1, 9, 50})
          for (bool inverse : {false, true}) {
            const RotaryShape shape{.rows = rows,
                                    .row_stride = 3 * head_dim + 5,
                                    .heads = 3,
                                    .head_dim = head_dim,
                                    .period = 13,
                                    .first_position = 1000,
                                    .inverse = inverse};
            Array x = Array::random(rows * shape.row_stride, dtype, 1), want = x;
            rotary(x.data(), shape, dtype, pair);
            ref::rotary(want.data(), shape, dtype);
            expect_near(x, want, 2, 1, fmt::format("{} {} {} {}", target, name_of(dtype), rows, head_dim));
          }
  });
}

// Two runs, one after the other, are the rows of a longer sequence that stand there, to the bit.
TEST(Rotary, RunsStandWhereTheySay) {
  const Threads pair(2);
  constexpr int64_t kWidth = 12, kLong = 40, kBatch = 3;
  for (DType dtype : kFloating) {
    RotaryShape shape{.rows = kBatch * kLong, .row_stride = kWidth, .heads = 2, .head_dim = 6, .period = kLong};
    Array whole = Array::random(kBatch * kLong * kWidth, dtype, 1);
    // Tokens 5..11 and 31..34 of every sequence.
    Array pieces(kBatch * 11 * kWidth, dtype);
    auto source = [](int64_t t) { return t < 7 ? 5 + t : 24 + t; };
    auto each = [&](auto&& f) {
      for (int64_t b = 0; b < kBatch; ++b)
        for (int64_t t = 0; t < 11; ++t)
          for (int64_t i = 0; i < kWidth; ++i) f((b * 11 + t) * kWidth + i, (b * kLong + source(t)) * kWidth + i);
    };
    pieces.fill([](int64_t) { return 0.0; });
    std::vector<double> values(kBatch * 11 * kWidth);
    each([&](int64_t to, int64_t from) { values[static_cast<size_t>(to)] = whole[from]; });
    pieces.fill([&](int64_t i) { return values[static_cast<size_t>(i)]; });
    Array by_ref = pieces;
    rotary(whole.data(), shape, dtype, pair);
    shape.rows = kBatch * 11;
    shape.period = 11;
    for (const auto& [begin, end, first] : {std::array{0, 7, 5}, std::array{7, 11, 31}}) {
      shape.begin = begin, shape.end = end, shape.first_position = first;
      rotary(pieces.data(), shape, dtype, pair);
      ref::rotary(by_ref.data(), shape, dtype);
    }
    expect_near(pieces, by_ref, 2, 1, std::string(name_of(dtype)));
    each([&](int64_t to, int64_t from) { EXPECT_EQ(pieces[to], whole[from]) << name_of(dtype) << " " << to; });
  }
}

// Angles of up to a million radians, against the library's cosine of the same double.
TEST(Rotary, FarPositionsKeepTheirAngle) {
  const Threads alone(1);
  on_every_target([&](const std::string& target) {
    const RotaryShape shape{
        .rows = 200, .row_stride = 64, .heads = 1, .head_dim = 64, .period = 200, .first_position = 999'900};
    Array x(200 * 64, DType::f32), want = x;
    x.fill([](int64_t i) { return i % 64 < 32 ? 1.0 : 0.0; });
    want = x;
    rotary(x.data(), shape, DType::f32, alone);
    ref::rotary(want.data(), shape, DType::f32);
    expect_near(x, want, 1, 1, target);
  });
}

TEST(Rotary, RotatesByPositionTimesFrequency) {
  const Threads alone(1);
  const RotaryShape shape{.rows = 4, .row_stride = 4, .heads = 1, .head_dim = 4, .period = 4};
  Array x(16, DType::f64);
  x.fill([](int64_t i) { return i % 4 < 2 ? 1.0 : 0.0; });  // (1, 0) in both planes
  rotary(x.data(), shape, DType::f64, alone);
  for (int64_t p = 0; p < 4; ++p) {
    const double position = static_cast<double>(p);
    EXPECT_NEAR(x[p * 4 + 0], std::cos(position), 1e-15);
    EXPECT_NEAR(x[p * 4 + 2], std::sin(position), 1e-15);  // half a head away, not beside
    EXPECT_NEAR(x[p * 4 + 1], std::cos(position / 100), 1e-15);
    EXPECT_NEAR(x[p * 4 + 3], std::sin(position / 100), 1e-15);
  }
}

TEST(Rotary, InverseIsTheTranspose) {
  const Threads alone(1);
  RotaryShape shape{.rows = 20, .row_stride = 96, .heads = 2, .head_dim = 48, .period = 7, .first_position = 3};
  const Array x = Array::random(20 * 96, DType::f64, 1), y = Array::random(20 * 96, DType::f64, 2);
  Array forward = x, back = y, both = x;
  rotary(forward.data(), shape, DType::f64, alone);
  rotary(both.data(), shape, DType::f64, alone);
  shape.inverse = true;
  rotary(back.data(), shape, DType::f64, alone);
  rotary(both.data(), shape, DType::f64, alone);
  EXPECT_NEAR(dot(forward, y), dot(x, back), 1e-12);  // ⟨Rx, y⟩ = ⟨x, Rᵀy⟩
  expect_near(both, x, 4, 1, "there and back");
}

TEST(Rotary, ScoresDependOnTheDistanceAlone) {
  const Threads alone(1);
  const RotaryShape shape{.rows = 30, .row_stride = 64, .heads = 1, .head_dim = 64, .period = 30};
  Array q(30 * 64, DType::f64), k = q;
  const Array one = Array::random(64, DType::f64, 1), other = Array::random(64, DType::f64, 2);
  q.fill([&](int64_t i) { return one[i % 64]; });
  k.fill([&](int64_t i) { return other[i % 64]; });
  rotary(q.data(), shape, DType::f64, alone);
  rotary(k.data(), shape, DType::f64, alone);
  auto score = [&](int64_t i, int64_t j) {
    double total = 0;
    for (int64_t c = 0; c < 64; ++c) total += q[i * 64 + c] * k[j * 64 + c];
    return total;
  };
  for (int64_t i = 5; i < 30; ++i) EXPECT_NEAR(score(i, i - 5), score(5, 0), 1e-12);
}

}  // namespace
}  // namespace esp::kernel
