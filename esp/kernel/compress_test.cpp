// Tests the compression kernels against reference loops: top-k and threshold selection, sign bits, stochastic rounding,
// bit packing, orthonormalisation.
#include <algorithm>
#include <limits>
#include <set>

#include "esp/kernel/bit_pack.h"
#include "esp/kernel/difference.h"
#include "esp/kernel/elementwise.h"
#include "esp/kernel/orthonormalise.h"
#include "esp/kernel/sign.h"
#include "esp/kernel/sparse.h"
#include "esp/kernel/stochastic_rounding.h"
#include "esp/kernel/test_arrays.h"

namespace esp::kernel {
namespace {

std::vector<float> normals(int64_t count, uint64_t seed) {
  std::vector<float> x(static_cast<size_t>(count));
  fill_normal(x.data(), 0, 1, seed, 3, 0, count, DType::f32, {});
  return x;
}

// Compares the bits, so that equal NaNs compare equal. An empty vector may have a null address; memcmp is then skipped.
bool same_bits(const std::vector<float>& a, const std::vector<float>& b) {
  return a.size() == b.size() && (a.empty() || std::memcmp(a.data(), b.data(), a.size() * sizeof(float)) == 0);
}

TEST(TopKKernel, SelectsSameElementsAsSort) {
  for_each_target([&](const std::string& target) {
    for (int64_t count : {1, 5, 1000, 200'000})
      for (double share : {0.0, 0.001, 0.01, 0.3, 1.0})
        for (int kind = 0; kind < 5; ++kind) {
          std::vector<float> x = normals(count, 4);
          for (int64_t i = 0; i < count; ++i) {
            float& v = x[static_cast<size_t>(i)];
            if (kind == 1) v = std::round(v * 4) / 4;                     // many equal magnitudes
            if (kind == 2) v = 1;                                         // all magnitudes equal
            if (kind == 3) v = i % 1000 ? 0.0f : v;                       // mostly zeros
            if (kind == 4 && i % 5000 == 7) v = i % 2 ? NAN : -INFINITY;  // NaN and infinity must always be selected
          }
          const auto k = static_cast<int64_t>(share * static_cast<double>(count));
          std::vector<uint32_t> indices(static_cast<size_t>(k)), want_indices(indices);
          std::vector<float> values(static_cast<size_t>(k)), want(values);
          top_k(indices.data(), values.data(), x.data(), count, k, DType::f32, {});
          ref::top_k(want_indices.data(), want.data(), x.data(), count, k, DType::f32);
          const std::string where = fmt::format("{} count {} k {} kind {}", target, count, k, kind);
          ASSERT_EQ(indices, want_indices) << where;
          ASSERT_TRUE(same_bits(values, want)) << where;
        }
  });
}

TEST(TopKKernel, SelectsLargestMagnitudesOfF64) {
  std::vector<double> x = {1, -1e-300, 3, -3, 1e300, 0};
  std::vector<uint32_t> indices(3);
  std::vector<double> values(3);
  top_k(indices.data(), values.data(), x.data(), 6, 3, DType::f64, {});
  EXPECT_EQ(indices, (std::vector<uint32_t>{2, 3, 4}));
  EXPECT_EQ(values, (std::vector<double>{3, -3, 1e300}));
}

TEST(SelectAbove, MatchesRef) {
  for_each_target([&](const std::string& target) {
    for (int64_t count : {0, 1, 77, 16384, 50'001})
      for (double threshold : {0.0, 0.5, 3.0, 10.0}) {
        std::vector<float> x = normals(count, 6);
        if (count > 50) x[50] = NAN;
        std::vector<uint32_t> indices(x.size()), want_indices(x.size());
        std::vector<float> values(x.size()), want(x.size());
        const int64_t kept = select_above(indices.data(), values.data(), x.data(), count, threshold, DType::f32, {});
        ASSERT_EQ(kept, ref::select_above(want_indices.data(), want.data(), x.data(), count, threshold, DType::f32));
        ASSERT_EQ(indices, want_indices) << target;
        ASSERT_TRUE(same_bits(values, want)) << target;
      }
  });
}

TEST(RandomCoordinates, DrawsDistinctCoordinatesWithEqualProbability) {
  for (int64_t count : {1, 2, 3, 10, 64, 1000}) {
    const RandomCoordinates coordinates(count, 1, 2);
    std::set<int64_t> seen;
    for (int64_t j = 0; j < count; ++j) seen.insert(coordinates[j]);
    EXPECT_EQ(static_cast<int64_t>(seen.size()), count);
    EXPECT_GE(*seen.begin(), 0);
    EXPECT_LT(*seen.rbegin(), count);
  }
  constexpr int kDraws = 20000;
  int times[10] = {}, together = 0;
  for (int draw = 0; draw < kDraws; ++draw) {
    const RandomCoordinates coordinates(10, 9, static_cast<uint64_t>(draw));
    std::set<int64_t> seen;
    for (int64_t j = 0; j < 3; ++j) seen.insert(coordinates[j]);
    for (int64_t at : seen) ++times[at];
    together += seen.count(0) && seen.count(1);
  }
  for (int count : times) EXPECT_NEAR(count / double{kDraws}, 0.3, 4.5 * std::sqrt(0.21 / kDraws));
  EXPECT_NEAR(together / double{kDraws}, 3.0 / 45, 5 * std::sqrt(0.0667 * 0.933 / kDraws));
}

TEST(SignBits, EncodedBitsSumsAndDecodedValuesMatchRef) {
  const Threads pair(2);
  for_each_target([&](const std::string& target) {
    for (int64_t count : {0, 1, 8, 63, 64, 65, 1000, 70'001}) {
      std::vector<float> x = normals(count, 8);
      if (count > 2) x[1] = 0, x[2] = -0.0f;
      std::vector<uint8_t> bits(static_cast<size_t>((count + 7) / 8) + 1, 0xa5), want = bits;
      const SignSums sums = sign_bits(bits.data(), x.data(), count, pair);
      const SignSums by_ref = ref::sign_bits(want.data(), x.data(), count);
      ASSERT_EQ(bits, want) << target << ' ' << count;
      EXPECT_EQ(sums.num_negative, by_ref.num_negative);
      EXPECT_NEAR(sums.positive, by_ref.positive, 1e-12 * by_ref.positive);
      EXPECT_NEAR(sums.negative, by_ref.negative, 1e-12 * by_ref.negative);
      for (WriteMode into : {WriteMode::overwrite, WriteMode::add, WriteMode::subtract}) {
        std::vector<float> y = normals(count, 9), y_want = y;
        decode_sign_bits(y.data(), into, bits.data(), 0.3f, -0.7f, count, pair);
        ref::decode_sign_bits(y_want.data(), into, bits.data(), 0.3f, -0.7f, count);
        ASSERT_EQ(y, y_want) << target << ' ' << count;
      }
    }
  });
}

// Compares the public kernels with the reference loops. Both use the random numbers of fill_uniform.
TEST(StochasticRounding, CodecsMatchRefOnEveryInstructionSet) {
  const Threads pair(2);
  for_each_target([&](const std::string& target) {
    for (int64_t count : {1, 7, 512, 1024, 5003}) {
      const std::vector<float> x = normals(count, 10);
      const PhiloxKey key{3, 4};
      std::vector<float> u(x.size());
      fill_uniform(u.data(), 0, 1, key.seed, key.purpose, 0, count, DType::f32, {});
      const std::string where = fmt::format("{} {}", target, count);

      std::vector<uint8_t> natural(natural_bytes(count)), natural_want(natural);
      natural_encode(natural.data(), x.data(), count, key, pair);
      ref::natural_encode_values(natural_want.data(), natural_want.data() + count, x.data(), u.data(), count);
      ASSERT_EQ(natural, natural_want) << where;
      for (WriteMode into : {WriteMode::overwrite, WriteMode::add, WriteMode::subtract}) {
        std::vector<float> y = normals(count, 11), want = y;
        natural_decode(y.data(), into, natural.data(), count, pair);
        ref::natural_decode_values(want.data(), into, natural.data(), natural.data() + count, count);
        ASSERT_EQ(y, want) << where;
      }

      const QsgdFormat code{16, 1024};
      std::vector<uint8_t> qsgd(qsgd_bytes(count, code));
      qsgd_encode(qsgd.data(), x.data(), count, code, key, pair);
      std::vector<float> y(x.size());
      ASSERT_TRUE(qsgd_decode(y.data(), WriteMode::overwrite, qsgd.data(), count, code, pair));
      for (int64_t b = 0, buckets = (count + 1023) / 1024; b < buckets; ++b) {
        const int64_t first = b * 1024, n = std::min<int64_t>(1024, count - first);
        float norm;
        std::memcpy(&norm, qsgd.data() + 4 * b, 4);
        std::vector<uint16_t> codes(static_cast<size_t>(n)), got(codes);
        ref::qsgd_encode_values(codes.data(), x.data() + first, u.data() + first, n, 16.0f / norm, 16, 5);
        unpack_bits(got.data(), qsgd.data() + 4 * buckets + first * 6 / 8, n, 6);
        ASSERT_EQ(got, codes) << where;
        std::vector<float> values(static_cast<size_t>(n));
        ref::qsgd_decode_values(values.data(), WriteMode::overwrite, codes.data(), n, norm / 16.0f, 5);
        ASSERT_TRUE(std::equal(values.begin(), values.end(), y.begin() + first)) << where;
      }

      const BlockFormat blocks{8, 512};
      std::vector<uint8_t> encoded(quantized_bytes(count, blocks)), nearest(encoded);
      quantize_stochastic(encoded.data(), x.data(), count, blocks, key, pair);
      quantize(nearest.data(), x.data(), count, DType::f32, blocks, pair);
      const int64_t num_blocks = (count + 511) / 512;
      ASSERT_TRUE(std::equal(encoded.begin(), encoded.begin() + 4 * num_blocks, nearest.begin())) << where;
      for (int64_t b = 0; b < num_blocks; ++b) {
        const int64_t first = b * 512, n = std::min<int64_t>(512, count - first);
        float scale;
        std::memcpy(&scale, encoded.data() + 4 * b, 4);
        std::vector<int8_t> want(static_cast<size_t>(n));
        ref::stochastic_block_encode(want.data(), x.data() + first, u.data() + first, n, scale, 127);
        ASSERT_EQ(std::memcmp(encoded.data() + 4 * num_blocks + first, want.data(), want.size()), 0) << where;
      }
    }
  });
}

TEST(BitPack, RoundTripsForEveryBitWidth) {
  for (int bits = 1; bits <= 16; ++bits)
    for (int64_t count : {0, 1, 7, 8, 9, 1000}) {
      std::vector<uint16_t> numbers(static_cast<size_t>(count)), back(numbers);
      for (int64_t i = 0; i < count; ++i)
        numbers[static_cast<size_t>(i)] =
            static_cast<uint16_t>(random_bits(1, 2, static_cast<uint64_t>(i)) & ((1u << bits) - 1));
      std::vector<uint8_t> packed(packed_bytes(count, bits) + 1, 0xa5);
      pack_bits(packed.data(), numbers.data(), count, bits);
      EXPECT_EQ(packed.back(), 0xa5);
      unpack_bits(back.data(), packed.data(), count, bits);
      EXPECT_EQ(back, numbers) << bits << ' ' << count;
    }
}

TEST(Orthonormalise, MakesRowsOrthonormalAndZeroesDependentRows) {
  for_each_target([&](const std::string& target) {
    for (int64_t count : {4, 100, 9001}) {
      std::vector<float> rows = normals(4 * count, 12);
      for (int64_t i = 0; i < count; ++i)
        rows[static_cast<size_t>(2 * count + i)] =
            2 * rows[static_cast<size_t>(i)] - rows[static_cast<size_t>(count + i)];
      std::vector<float> want = rows;
      orthonormalise_rows(rows.data(), 4, count);
      ref::orthonormalise_rows(want.data(), 4, count);
      for (size_t i = 0; i < rows.size(); ++i) ASSERT_NEAR(rows[i], want[i], 2e-5) << target << ' ' << count;
      for (int64_t a = 0; a < 4; ++a)
        for (int64_t b = 0; b <= a; ++b) {
          double dot = 0;
          for (int64_t i = 0; i < count; ++i)
            dot += static_cast<double>(rows[static_cast<size_t>(a * count + i)]) *
                   static_cast<double>(rows[static_cast<size_t>(b * count + i)]);
          EXPECT_NEAR(dot, a == b && a != 2 ? 1 : 0, 2e-6) << target << ' ' << a << ' ' << b;
        }
    }
  });
}

TEST(Difference, SubtractAndMultiplyMatchHandComputedValues) {
  for_each_target([&](const std::string&) {
    std::vector<double> a = {5, 3, 1, -2, 7}, b = {1, 2, 3, 4, 0.5}, y(5);
    subtract(y.data(), a.data(), b.data(), 5, DType::f64, {});
    EXPECT_EQ(y, (std::vector<double>{4, 1, -2, -6, 6.5}));
    multiply(y.data(), b.data(), 5, DType::f64, {});
    EXPECT_EQ(y, (std::vector<double>{4, 2, -6, -24, 3.25}));
    write_values(y.data(), WriteMode::subtract, a.data(), 5, DType::f64, {});
    EXPECT_EQ(y, (std::vector<double>{-1, -1, -7, -22, -3.75}));
  });
}

}  // namespace
}  // namespace esp::kernel
