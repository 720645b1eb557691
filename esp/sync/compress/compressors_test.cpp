#include "esp/sync/compress/compressor.h"

#include <algorithm>
#include <limits>
#include <map>
#include <numeric>

#include <fmt/format.h>

#include "esp/base/error.h"
#include "esp/sync/compress/testing.h"

namespace esp::sync {
namespace {

const std::vector<std::string> kEvery = {"identity",
                                         "fp16",
                                         "bf16",
                                         "int8",
                                         "int8:64:stochastic",
                                         "int4",
                                         "int4:16:stochastic",
                                         "random:-8,-4,-1,0,1,4,8",
                                         "qsgd:16",
                                         "qsgd:4:64",
                                         "qsgd:255",
                                         "natural",
                                         "sign",
                                         "onebit",
                                         "topk:0.05",
                                         "topk:3",
                                         "randomk:0.1",
                                         "randomk:3:unscaled",
                                         "threshold:0.5"};

// Vectors for which a compressor's error comes close to its bound.
std::vector<std::pair<std::string, Values<float>>> hard_vectors(int64_t n) {
  std::vector<std::pair<std::string, Values<float>>> all;
  const auto size = static_cast<size_t>(n);
  all.emplace_back("normal", normal_values(n, 1));
  all.emplace_back("small", normal_values(n, 2, 1e-4));
  all.emplace_back("zeros", Values<float>(size));
  all.emplace_back("constant", Values<float>(size, -0.75f));
  Values<float> spike(size), wide = normal_values(n, 3), ramp(size), half(size);
  spike[size / 2] = 100;
  for (size_t i = 0; i < size; ++i) {
    wide[i] *= std::exp2(static_cast<float>(i % 24) - 12);
    ramp[i] = static_cast<float>(i + 1);
    half[i] = i == 0 ? 127.0f : (i % 2 ? 0.499f : -0.499f);  // just below the midpoint of two int8 levels
  }
  all.emplace_back("spike", spike);
  all.emplace_back("wide", wide);
  all.emplace_back("ramp", ramp);
  all.emplace_back("half", half);
  return all;
}

TEST(Compressors, EncodeToTheDocumentedLength) {
  struct Case {
    std::string spec;
    int64_t n;
    size_t bytes;
  };
  const Case cases[] = {
      {"identity", 1001, 4004},
      {"fp16", 1001, 2002},
      {"bf16", 1001, 2002},
      {"int8:256", 1001, 1001 + 4 * 4},
      {"int8:64:stochastic", 1001, 1001 + 4 * 16},
      {"int4:128", 1001, 501 + 4 * 8},
      {"int4:2:stochastic", 7, 4 + 4 * 4},
      {"random:0,1", 1001, 126},
      {"random", 1001, 1502},
      {"random:0,0.25,0.5,0.75,1", 1001, 376},
      {"qsgd:16:512", 1001, 751 + 4 * 2},
      {"qsgd:1:1024", 1001, 251 + 4},
      {"qsgd:255:1024", 1001, 1127 + 4},
      {"natural", 1001, 1127},
      {"sign", 1001, 126 + 4},
      {"onebit", 1001, 126 + 8},
      {"topk:10", 1001, 80},
      {"topk:0.01", 1000, 80},
      {"topk:7%", 100, 56},
      {"topk:1.0", 100, 800},
      {"randomk:10", 1001, 40},
      {"randomk:0.01:unscaled", 1000, 40},
      {"topk:0.01", 1, 8},
  };
  for (const Case& it : cases) {
    const auto compressor = make_compressor(it.spec);
    EXPECT_EQ(compressor->encoded_bytes(it.n, DType::f32), it.bytes) << it.spec;
    EXPECT_EQ(code_of(*compressor, normal_values(it.n, 4)).size(), it.bytes) << it.spec;
  }
  const auto threshold = make_compressor("threshold:2");
  const Values<float> x = {1, -3, 2, 2.5f, 0};
  EXPECT_EQ(code_of(*threshold, x).size(), 4u + 8 * 2);
  EXPECT_EQ(compressed(*threshold, x), (Values<float>{0, -3, 0, 2.5f, 0}));
}

TEST(Compressors, DecodeDeterministically) {
  for (const std::string& spec : kEvery)
    for (int64_t n : {3, 8, 63, 64, 1000, 4097}) {
      const auto compressor = make_compressor(spec);
      const Values<float> x = normal_values(n, 11);
      const RandomKey draw{7, 3, 1};
      const auto code = code_of(*compressor, x, draw);
      ASSERT_EQ(code, code_of(*compressor, x, draw)) << spec;
      Values<float> y(x.size(), -1), added = normal_values(n, 12), subtracted = added, by_hand = added, minus = added;
      compressor->decode(y.data(), WriteMode::overwrite, code, n, DType::f32, draw, {});
      compressor->decode(added.data(), WriteMode::add, code, n, DType::f32, draw, {});
      compressor->decode(subtracted.data(), WriteMode::subtract, code, n, DType::f32, draw, {});
      for (size_t i = 0; i < y.size(); ++i) {
        by_hand[i] += y[i];
        minus[i] -= y[i];
      }
      EXPECT_TRUE(same_bits(added, by_hand)) << spec << " of " << n;
      EXPECT_TRUE(same_bits(subtracted, minus)) << spec << " of " << n;
      // The same values as f64 must decode to the same result as f32.
      const Values<double> wide(x.begin(), x.end());
      const Values<double> back = compressed(*compressor, wide, draw);
      for (size_t i = 0; i < back.size(); ++i) {
        // randomk rounds its scale factor n/K to f32
        const double slack = spec == "randomk:0.1" ? 2e-7 * std::abs(back[i]) : 0;
        ASSERT_NEAR(back[i], static_cast<double>(y[i]), slack) << spec << " of " << n;
      }
    }
}

TEST(Compressors, EncodeEmptyAndOneElementVectors) {
  for (const std::string& spec : kEvery) {
    if (spec == "topk:3" || spec.starts_with("randomk:3")) continue;
    const auto compressor = make_compressor(spec);
    EXPECT_TRUE(compressed(*compressor, Values<float>{}).empty()) << spec;
    EXPECT_EQ(compressed(*compressor, Values<float>{1}).size(), 1u) << spec;
  }
}

TEST(Compressors, ContractByAtLeastDeltaOnHardVectors) {
  for (const std::string& spec : kEvery)
    for (int64_t n : {1, 16, 100, 2000}) {
      const auto compressor = make_compressor(spec);
      if (spec == "topk:3" && n < 3) continue;
      const auto delta = compressor->guarantee(n).delta;
      if (!delta || spec.starts_with("randomk")) continue;  // the bound of randomk holds only for the expected error
      EXPECT_GT(*delta, 0) << spec;
      for (const auto& [name, x] : hard_vectors(n))
        EXPECT_LE(distance2(compressed(*compressor, x), x), (1 - *delta) * norm2(x) * (1 + 1e-6))
            << spec << ' ' << name;
    }
}

// Statistics of one number over many random draws. If the compressor is unbiased, the number has mean 0.
struct Samples {
  double sum = 0, squares = 0;
  int64_t num = 0;
  void add(double v) {
    sum += v;
    squares += v * v;
    ++num;
  }
  double mean() const { return sum / static_cast<double>(num); }
  double standard_error() const {
    return std::sqrt(std::max(0.0, squares / static_cast<double>(num) - mean() * mean()) /
                     static_cast<double>(num - 1));
  }
};

// The mean error must be within 4 standard errors, plus the fp32 rounding of the encoded values. Each coordinate is
// checked if all its outcomes are frequent. The error along x and along a vector of random signs is checked for every
// vector, also if some outcomes are rare. The mean square error must be at most ω‖x‖² plus its standard error.
TEST(Compressors, AreUnbiasedWithVarianceWithinOmega) {
  constexpr int kDraws = 4000;
  for (const std::string spec : {"int8:64:stochastic", "int4:16:stochastic", "qsgd:16", "qsgd:4:64", "qsgd:1:8",
                                 "natural", "randomk:0.1", "randomk:3"}) {
    const auto compressor = make_compressor(spec);
    for (const auto& [name, x] : hard_vectors(96)) {
      const double omega = compressor->guarantee(96).omega.value(), length = std::sqrt(norm2(x));
      std::vector<Samples> each(x.size());
      Samples along_x, along_signs, square;
      for (int draw = 0; draw < kDraws; ++draw) {
        const Values<float> y = compressed(*compressor, x, {99, static_cast<uint64_t>(draw), 2});
        double on_x = 0, on_signs = 0;
        for (size_t i = 0; i < y.size(); ++i) {
          const double off = static_cast<double>(y[i]) - static_cast<double>(x[i]);
          each[i].add(off);
          on_x += off * static_cast<double>(x[i]);
          on_signs += random_bits(1, 2, i) % 2 ? off : -off;
        }
        along_x.add(on_x);
        along_signs.add(on_signs);
        square.add(distance2(y, x));
      }
      EXPECT_LE(std::abs(along_x.mean()), 4 * along_x.standard_error() + 2e-7 * norm2(x)) << spec << ' ' << name;
      EXPECT_LE(std::abs(along_signs.mean()), 4 * along_signs.standard_error() + 2e-6 * length) << spec << ' ' << name;
      EXPECT_LE(square.mean(), omega * norm2(x) * (1 + 1e-6) + 4 * square.standard_error() + 1e-12 * norm2(x))
          << spec << ' ' << name;
      if (name == "wide" || name == "half" || name == "spike") continue;
      for (size_t i = 0; i < x.size(); ++i)
        EXPECT_LE(std::abs(each[i].mean()), 4 * each[i].standard_error() + 2e-7 * std::abs(static_cast<double>(x[i])))
            << spec << ' ' << name << ' ' << i;
    }
  }
}

TEST(Compressors, RandomKContractsInExpectation) {
  const auto compressor = make_compressor("randomk:0.25:unscaled");
  for (const auto& [name, x] : hard_vectors(64)) {
    double error = 0, error2 = 0;
    constexpr int kDraws = 3000;
    for (int draw = 0; draw < kDraws; ++draw) {
      const double once = distance2(compressed(*compressor, x, {5, static_cast<uint64_t>(draw), 0}), x);
      error += once;
      error2 += once * once;
    }
    const double mean = error / kDraws, scatter = std::sqrt(std::max(0.0, error2 / kDraws - mean * mean) / kDraws);
    EXPECT_NEAR(mean, 0.75 * norm2(x), 4 * scatter + 1e-9 * norm2(x)) << name;
  }
}

TEST(RandomQuantiser, RoundsSixTenthsToHalfOrThreeQuarters) {
  const auto compressor = make_compressor("random:0,0.25,0.5,0.75,1");
  constexpr int kDraws = 100000;
  std::map<float, int> seen;
  for (float v : compressed(*compressor, Values<float>(kDraws, 0.6f), {3, 1, 0})) ++seen[v];
  ASSERT_EQ(seen.size(), 2u);
  EXPECT_NEAR(seen[0.5f] / double{kDraws}, 0.6, 4 * std::sqrt(0.24 / kDraws));
  EXPECT_NEAR(seen[0.75f] / double{kDraws}, 0.4, 4 * std::sqrt(0.24 / kDraws));
  EXPECT_EQ(compressed(*compressor, Values<float>{-3, 0, 0.25f, 1, 7}), (Values<float>{0, 0, 0.25f, 1, 1}));
  // Encodes with every u = k/1000 instead of random draws: the mean must be exact.
  int up = 0;
  for (int k = 0; k < 1000; ++k) up += k / 1000.0 < (0.6 - 0.5) / 0.25 - 1e-12;
  EXPECT_EQ(0.5 * (1000 - up) + 0.75 * up, 600);
}

TEST(TopK, BreaksTiesByLowerIndexAndReachesItsBoundOnConstants) {
  const auto top2 = make_compressor("topk:2");
  EXPECT_EQ(compressed(*top2, Values<float>{1, -2, 2, 2}), (Values<float>{0, -2, 2, 0}));
  const Values<float> x(50, -3.0f);
  EXPECT_DOUBLE_EQ(distance2(compressed(*make_compressor("topk:5"), x), x), (1 - 0.1) * norm2(x));
}

TEST(Sign, ErrorMatchesTheFormulaAndIsAtLeastTheOneBitError) {
  for (const auto& [name, x] : hard_vectors(200)) {
    double l1 = 0;
    for (float v : x) l1 += std::abs(static_cast<double>(v));
    const double want = norm2(x) - l1 * l1 / 200;
    const double one = distance2(compressed(*make_compressor("sign"), x), x);
    EXPECT_NEAR(one, want, 1e-6 * norm2(x)) << name;
    EXPECT_LE(distance2(compressed(*make_compressor("onebit"), x), x), one + 1e-6 * norm2(x)) << name;
  }
  EXPECT_EQ(compressed(*make_compressor("sign"), Values<float>{0, -0.0f, -3, 1}), (Values<float>{1, 1, -1, 1}));
  EXPECT_EQ(compressed(*make_compressor("onebit"), Values<float>{0, 2, -3, -1}), (Values<float>{1, 1, -2, -2}));
}

TEST(RandomK, DrawsSameCoordinatesOnAllRanksAndNewOnesPerCall) {
  const auto compressor = make_compressor("randomk:5");
  const Values<float> x(40, 1.0f);
  EXPECT_EQ(compressed(*compressor, x, {1, 2, 0}), compressed(*compressor, x, {1, 2, 3}));
  EXPECT_NE(compressed(*compressor, x, {1, 2, 0}), compressed(*compressor, x, {1, 3, 0}));
  const Values<float> y = compressed(*compressor, x);
  EXPECT_EQ(std::count(y.begin(), y.end(), 8.0f), 5);
}

TEST(Compressors, PropagateNonFiniteValues) {
  for (const std::string spec : {"identity", "fp16", "bf16", "int8", "int4:16:stochastic", "qsgd:16", "natural", "sign",
                                 "onebit", "topk:3", "threshold:0.5"})
    for (float bad : {std::numeric_limits<float>::infinity(), std::numeric_limits<float>::quiet_NaN()}) {
      Values<float> x = normal_values(100, 8);
      x[60] = bad;
      const Values<float> y = compressed(*make_compressor(spec), x);
      EXPECT_TRUE(std::any_of(y.begin(), y.end(), [](float v) { return !std::isfinite(v); })) << spec;
    }
  EXPECT_THROW(compressed(*make_compressor("random:0,1"), Values<float>{NAN}), UsageError);
}

TEST(Compressors, RejectInvalidOptionsWithAHint) {
  auto message_of = [](const std::string& spec, int64_t n = 10) -> std::string {
    try {
      make_compressor(spec)->check(n);
    } catch (const UsageError& error) {
      return error.what();
    }
    return "no error";
  };
  EXPECT_THAT(message_of("topk:11"), testing::HasSubstr("Use 1 to 10"));
  EXPECT_THAT(message_of("randomk:11"), testing::HasSubstr("Use 1 to 10"));
  EXPECT_EQ(message_of("topk:10"), "no error");
  EXPECT_THAT(message_of("topk:1.5"), testing::HasSubstr("topk[:FRACTION or :K]"));
  EXPECT_THAT(message_of("topk:0"), testing::HasSubstr("at least 1"));
  EXPECT_THAT(message_of("top"), testing::HasSubstr("topk"));
  EXPECT_THAT(message_of("int8:0"), testing::HasSubstr("integer from 1"));
  EXPECT_THAT(message_of("int4:7"), testing::HasSubstr("even"));
  EXPECT_THAT(message_of("qsgd:99999"), testing::HasSubstr("32767"));
  EXPECT_THAT(message_of("qsgd:4:20"), testing::HasSubstr("multiple of 8"));
  EXPECT_EQ(message_of("random"), "no error");
  EXPECT_THAT(message_of("random:1,1"), testing::HasSubstr("strictly ascending"));
  EXPECT_EQ(message_of("threshold"), "no error");
  EXPECT_THAT(message_of("power"), testing::HasSubstr("powersgd"));
  EXPECT_THAT(message_of("threshold:-1"), testing::HasSubstr("from 0"));
  EXPECT_THAT(message_of("sign:3"), testing::HasSubstr("unknown or extra option"));
}

TEST(Compressors, RejectDamagedEncodings) {
  auto decoded = [](const std::string& spec, std::vector<std::byte> code, int64_t n) {
    Values<float> y(static_cast<size_t>(n));
    make_compressor(spec)->decode(y.data(), WriteMode::overwrite, code, n, DType::f32, {}, {});
  };
  for (const std::string& spec : kEvery) {
    auto code = code_of(*make_compressor(spec), normal_values(40, 6));
    code.pop_back();
    EXPECT_THROW(decoded(spec, code, 40), CommError) << spec;
  }
  auto top = code_of(*make_compressor("topk:2"), Values<float>{1, 2, 3});
  top[0] = std::byte{200};
  EXPECT_THROW(decoded("topk:2", top, 3), CommError);
  top[0] = top[4];  // makes an index a duplicate
  EXPECT_THROW(decoded("topk:2", top, 3), CommError);
  auto levels = code_of(*make_compressor("random:0,1,2"), Values<float>{1, 2});
  levels[0] = std::byte{0xff};
  EXPECT_THROW(decoded("random:0,1,2", levels, 2), CommError);
  auto qsgd = code_of(*make_compressor("qsgd:4"), Values<float>{1, 2});
  qsgd[4] = std::byte{0xff};
  EXPECT_THROW(decoded("qsgd:4", qsgd, 2), CommError);
}

}  // namespace
}  // namespace esp::sync
