#include "esp/kernel/gemm_check.h"

#include <vector>

#include <gtest/gtest.h>

#include "esp/kernel/elementwise.h"

namespace esp::kernel {
namespace {

struct Matrices {
  Matrices(int64_t m_, int64_t n_, int64_t k_) : m(m_), n(n_), k(k_) {
    uint64_t state = 7;
    const auto next = [&] {
      state = state * 6364136223846793005u + 1442695040888963407u;
      return static_cast<float>(static_cast<int64_t>(state >> 40)) * 0x1p-23f - 1.0f;
    };
    a.resize(static_cast<size_t>(m * k));
    b.resize(static_cast<size_t>(k * n));
    c.resize(static_cast<size_t>(m * n));
    bias.resize(static_cast<size_t>(n));
    for (auto* list : {&a, &b, &bias})
      for (float& x : *list) x = next();
  }
  std::optional<GemmFault> checked(const GemmOptions& o) const {
    return check_gemm_result(c.data(), a.data(), b.data(), m, n, k, o, DType::f32);
  }
  void multiply(const GemmOptions& o) { gemm(c.data(), a.data(), b.data(), m, n, k, o, DType::f32, {}); }
  int64_t m, n, k;
  std::vector<float> a, b, c, bias;
};

TEST(GemmCheck, AcceptsCorrectGemmsInEveryLayout) {
  for (const bool ta : {false, true})
    for (const bool tb : {false, true})
      for (const bool with_bias : {false, true}) {
        Matrices x(65, 130, 771);
        GemmOptions o;
        o.transpose_a = ta;
        o.transpose_b = tb;
        o.alpha = 0.3;
        if (with_bias) o.bias = x.bias.data();
        x.multiply(o);
        EXPECT_FALSE(x.checked(o)) << ta << tb << with_bias;
      }
}

TEST(GemmCheck, ToleratesRoundingOf16BitTypes) {
  for (const DType type : {DType::bf16, DType::f16}) {
    Matrices x(48, 96, 200);
    std::vector<uint16_t> a(x.a.size()), b(x.b.size()), c(x.c.size());
    cast(a.data(), type, x.a.data(), DType::f32, static_cast<int64_t>(a.size()), {});
    cast(b.data(), type, x.b.data(), DType::f32, static_cast<int64_t>(b.size()), {});
    gemm(c.data(), a.data(), b.data(), x.m, x.n, x.k, {}, type, {});
    EXPECT_FALSE(check_gemm_result(c.data(), a.data(), b.data(), x.m, x.n, x.k, {}, type));
    c[100] ^= 0x4000;
    EXPECT_TRUE(check_gemm_result(c.data(), a.data(), b.data(), x.m, x.n, x.k, {}, type));
  }
}

// Each small term is below half a unit in the last place of the large term.
TEST(GemmCheck, ToleratesRoundingOfManySmallTerms) {
  Matrices x(3, 2, 1024);
  x.b.assign(x.b.size(), 1.0f);
  for (size_t i = 0; i < x.a.size(); ++i) x.a[i] = i % 1024 == 0 ? 1.0f : 0x1.fcp-26f;
  for (float& sum : x.c) {
    sum = 0;
    for (size_t p = 0; p < 1024; ++p) sum += x.a[p];
    ASSERT_EQ(sum, 1.0f);
  }
  EXPECT_FALSE(x.checked({}));
}

TEST(GemmCheck, DetectsBitFlipsAndNamesTheColumn) {
  Matrices x(64, 64, 256);
  x.multiply({});
  for (const uint32_t bit : {30u, 29u, 28u, 27u, 26u, 25u, 24u, 22u})
    for (const size_t at : {size_t{0}, size_t{777}, x.c.size() - 1}) {
      auto& word = reinterpret_cast<uint32_t&>(x.c[at]);
      word ^= 1u << bit;
      const auto fault = x.checked({});
      ASSERT_TRUE(fault) << "bit " << bit << " of element " << at;
      EXPECT_EQ(fault->column, static_cast<int64_t>(at) % x.n);
      word ^= 1u << bit;
    }
  EXPECT_FALSE(x.checked({}));
}

TEST(GemmCheck, ChecksSumsBeforeActivation) {
  Matrices x(32, 40, 50);
  std::vector<float> before(x.c.size());
  GemmOptions o;
  o.bias = x.bias.data();
  o.activation = Activation::gelu;
  o.pre_activation = before.data();
  x.multiply(o);
  EXPECT_FALSE(x.checked(o));
  before[5] += 1;
  EXPECT_TRUE(x.checked(o));
}

TEST(GemmCheck, ChecksOneGemmPerRound) {
  Matrices x(16, 16, 16);
  GemmCheck check;
  const GemmCheck::Scope scope(&check);
  GemmOptions adding;
  adding.beta = 1;
  for (uint64_t round = 0; round < 4; ++round) {
    check.begin(round);
    for (int i = 0; i < 5; ++i) x.multiply({});
    x.multiply(adding);
  }
  EXPECT_EQ(check.num_checked(), 3);  // the first round only counts its GEMMs
  EXPECT_FALSE(check.fault());
  check.begin(9);
  check.corrupt_next();
  for (int i = 0; i < 5; ++i) x.multiply({});
  EXPECT_TRUE(check.fault());
}

TEST(GemmCheck, ChecksOnlyGemmsOfItsThreadAndScope) {
  Matrices x(8, 8, 8);
  GemmCheck check;
  {
    const GemmCheck::Scope scope(&check);
    const GemmCheck::Scope off(nullptr);
    check.begin(0);
    x.multiply({});
  }
  check.begin(0);
  x.multiply({});
  EXPECT_EQ(check.num_checked(), 0);
  EXPECT_EQ(GemmCheck::of_this_thread(), nullptr);
}

}  // namespace
}  // namespace esp::kernel
