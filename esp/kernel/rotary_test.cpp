#include <algorithm>
#include <array>
#include <cmath>
#include <numbers>
#include <vector>

#include "esp/kernel/embedding.h"
#include "esp/kernel/test_arrays.h"

namespace esp::kernel {
namespace {

// One example of each type of scaling, with ramps that end inside a head.
const std::array kAngles = {
    RotaryAngles{}, RotaryAngles{.scaling = RopeScaling::linear, .factor = 2.5},
    RotaryAngles{.scaling = RopeScaling::yarn, .factor = 4, .original_seq_len = 512},
    RotaryAngles{.theta = 500000, .scaling = RopeScaling::llama3, .factor = 8, .original_seq_len = 8192}};

TEST(Rotary, MatchesRefAndKeepsRestOfRow) {
  const Threads pair(2);
  for_each_target([&](const std::string& target) {
    for (DType dtype : kFloating)
      for (int64_t head_dim : {2, 6, 32, 64, 130})
        for (int64_t rows : {1, 9, 50})
          for (const auto& [angles, inverse] : {std::pair{kAngles[0], false},
                                                {kAngles[0], true},
                                                {kAngles[1], false},
                                                {kAngles[2], true},
                                                {kAngles[3], false}}) {
            const RotaryShape shape{.rows = rows,
                                    .row_stride = 3 * head_dim + 5,
                                    .heads = 3,
                                    .head_dim = head_dim,
                                    .period = 13,
                                    .first_position = 1000,
                                    .angles = angles,
                                    .inverse = inverse};
            Array x = Array::random(rows * shape.row_stride, dtype, 1), want = x;
            rotary(x.data(), shape, dtype, pair);
            ref::rotary(want.data(), shape, dtype);
            expect_near(x, want, 2, 1, fmt::format("{} {} {} {}", target, name_of(dtype), rows, head_dim));
          }
  });
}

// Rotates two ranges of tokens, packed one after the other. The result must be bit-identical to the same rows of the
// full sequence.
TEST(Rotary, RangesOfRowsUseTheirPositionsInSequence) {
  const Threads pair(2);
  constexpr int64_t kWidth = 12, kLong = 40, kBatch = 3;
  for (DType dtype : kFloating) {
    RotaryShape shape{.rows = kBatch * kLong, .row_stride = kWidth, .heads = 2, .head_dim = 6, .period = kLong};
    Array whole = Array::random(kBatch * kLong * kWidth, dtype, 1);
    // Rows of tokens 5 to 11 and 31 to 34 of every sequence, packed.
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

// Angles of up to a million radians: cosines must match std::cos of the same angle in double.
TEST(Rotary, MatchesExactCosineAtFarPositions) {
  const Threads alone(1);
  for_each_target([&](const std::string& target) {
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
  x.fill([](int64_t i) { return i % 4 < 2 ? 1.0 : 0.0; });  // both pairs of a head are (1, 0)
  rotary(x.data(), shape, DType::f64, alone);
  for (int64_t p = 0; p < 4; ++p) {
    const double position = static_cast<double>(p);
    EXPECT_NEAR(x[p * 4 + 0], std::cos(position), 1e-15);
    // element 0 forms a pair with element 2 (half a head away), not with element 1
    EXPECT_NEAR(x[p * 4 + 2], std::sin(position), 1e-15);
    EXPECT_NEAR(x[p * 4 + 1], std::cos(position / 100), 1e-15);
    EXPECT_NEAR(x[p * 4 + 3], std::sin(position / 100), 1e-15);
  }
}

TEST(Rotary, InverseIsTheTranspose) {
  const Threads alone(1);
  for (const RotaryAngles& angles : kAngles) {
    RotaryShape shape{
        .rows = 20, .row_stride = 96, .heads = 2, .head_dim = 48, .period = 7, .first_position = 3, .angles = angles};
    const Array x = Array::random(20 * 96, DType::f64, 1), y = Array::random(20 * 96, DType::f64, 2);
    Array forward = x, back = y, both = x;
    rotary(forward.data(), shape, DType::f64, alone);
    rotary(both.data(), shape, DType::f64, alone);
    shape.inverse = true;
    rotary(back.data(), shape, DType::f64, alone);
    rotary(both.data(), shape, DType::f64, alone);
    EXPECT_NEAR(dot(forward, y), dot(x, back), 1e-12);  // the inverse is the transpose if ⟨Rx, y⟩ = ⟨x, Rᵀy⟩
    if (angles.scaling != RopeScaling::yarn) expect_near(both, x, 4, 1, "rotated forward and back");
  }
}

// Wavelengths of the pairs of a head, in tokens per full rotation. This is the unit used in the papers.
std::vector<double> wavelengths(const RotaryAngles& angles, int64_t head_dim) {
  const RotaryFrequencies f = rotary_frequencies(angles, head_dim);
  std::vector<double> all;
  for (int64_t d = 0; d < head_dim / 2; ++d)
    all.push_back(2 * std::numbers::pi / f.scaled(plain_frequency(angles, d, head_dim), d));
  return all;
}

TEST(RotaryAngles, LinearScalesEveryWavelength) {
  const auto plain = wavelengths(kAngles[0], 64), stretched = wavelengths(kAngles[1], 64);
  for (size_t d = 0; d < plain.size(); ++d) EXPECT_NEAR(stretched[d] / plain[d], 2.5, 1e-12);
}

// Llama 3.1: wavelengths below 8192 / 4 are unchanged, those above 8192 / 1 become 8 times longer.
TEST(RotaryAngles, Llama3ScalesOnlyLongWavelengths) {
  RotaryAngles angles = kAngles[3];
  const auto stretched = wavelengths(angles, 128);
  angles.scaling = RopeScaling::none;
  const auto plain = wavelengths(angles, 128);
  int kept = 0, between = 0, whole = 0;
  for (size_t d = 0; d < plain.size(); ++d) {
    const double by = stretched[d] / plain[d];
    if (plain[d] < 2048) {
      EXPECT_EQ(by, 1);
      ++kept;
    } else if (plain[d] > 8192) {
      EXPECT_NEAR(by, 8, 1e-12);
      ++whole;
    } else {
      const double smooth = (8192 / plain[d] - 1) / (4 - 1);
      EXPECT_NEAR(1 / by, (1 - smooth) / 8 + smooth, 1e-12);
      ++between;
    }
  }
  EXPECT_EQ(kept, 29);  // up to pair 64 · ln(2048 / 2π) / ln(500000) = 28.2
  EXPECT_EQ(between, 6);
  EXPECT_EQ(whole, 29);
}

// LLaMA-2, context extended 16 times from 4096 (Peng et al. 2023). Pair 20.9 makes 32 rotations within 4096 tokens, and
// pair 45.03 makes one.
TEST(RotaryAngles, YarnRampsOverPairsAndScalesAttention) {
  const RotaryAngles angles{.scaling = RopeScaling::yarn, .factor = 16, .original_seq_len = 4096};
  const auto plain = wavelengths(RotaryAngles{}, 128), stretched = wavelengths(angles, 128);
  for (size_t d = 0; d < plain.size(); ++d) {
    const double ramp = std::clamp((static_cast<double>(d) - 20) / (46 - 20), 0.0, 1.0);
    EXPECT_NEAR(plain[d] / stretched[d], ramp / 16 + (1 - ramp), 1e-12) << d;
  }
  EXPECT_NEAR(rotary_frequencies(angles, 128).size, 1.2772588722239782, 1e-15);
  RotaryAngles said = angles;
  said.attention_factor = 1.5;
  EXPECT_EQ(rotary_frequencies(said, 128).size, 1.5);
}

TEST(Rotary, ScoresDependOnlyOnDistance) {
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
