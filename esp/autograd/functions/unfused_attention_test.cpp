#include "esp/autograd/functions/unfused_attention.h"

#include <gtest/gtest.h>

#include "esp/autograd/functions/apply_mask.h"
#include "esp/autograd/functions/pointwise.h"
#include "esp/autograd/testing.h"

namespace esp::autograd {
namespace {

using tensor::Tensor;
using Variables = std::vector<Variable>;

// Options for heads 4 to 7 of 12 heads, in sequences 7 and 8. If `padded`, sequence 8 has length 0.
AttentionArgs options(TapeFixture& rig, int64_t kv_heads, bool causal, double rate, bool padded) {
  AttentionArgs o;
  o.heads = 4;
  o.kv_heads = kv_heads;
  o.head_dim = 4;
  o.causal = causal;
  o.dropout = rate;
  o.key = {3, 4};
  o.first_sequence = 7;
  o.first_head = 4;
  o.all_heads = 12;
  if (padded) o.key_lengths = rig.ids({2}, {6, 0});
  return o;
}

template <typename F>
void for_every_kind(TapeFixture& rig, F f) {
  for (const int64_t kv_heads : {4, 2, 1})
    for (const bool causal : {true, false})
      for (const double rate : {0.0, 0.3})
        for (const bool padded : {false, true}) {
          SCOPED_TRACE(fmt::format("kv {} causal {} rate {} padded {}", kv_heads, causal, rate, padded));
          f(options(rig, kv_heads, causal, rate, padded));
        }
}

struct TwoPaths {
  std::vector<double> y, dx;
};

template <typename F>
TwoPaths run(TapeFixture& rig, const Tensor& x, F f) {
  const Variable leaf = rig.tape.leaf(x), y = f(rig.tape, leaf);
  TwoPaths seen;
  seen.y = {y.value().span<double>().begin(), y.value().span<double>().end()};
  rig.tape.seed(y, rig.random(y.shape(), 50));
  rig.tape.backward();
  const Tensor gradient = rig.tape.take_gradient(leaf);
  seen.dx = {gradient.span<double>().begin(), gradient.span<double>().end()};
  rig.tape.clear();
  return seen;
}

TEST(UnfusedAttention, MatchesFusedAttention) {
  TapeFixture rig(2);
  for_every_kind(rig, [&](const AttentionArgs& o) {
    const Tensor x = rig.random({2, 7, (4 + 2 * o.kv_heads) * 4}, 1);
    const TwoPaths stored = run(rig, x, [&](Tape& t, const Variable& v) { return unfused_attention(t, v, o); });
    const TwoPaths usual = run(rig, x, [&](Tape& t, const Variable& v) { return self_attention(t, v, o); });
    EXPECT_LT(distance(stored.y, usual.y), 1e-13);
    EXPECT_LT(distance(stored.dx, usual.dx), 1e-13);
  });
}

TEST(UnfusedAttention, GradientsMatchFiniteDifferences) {
  TapeFixture rig;
  for_every_kind(rig, [&](const AttentionArgs& o) {
    const Function f = [&](Tape& t, const Variables& x) {
      return Variables{unfused_attention(t, x[0], o), activation(t, x[0], kernel::Activation::tanh)};
    };
    EXPECT_LT(max_gradient_error(rig, f, {rig.random({2, 5, (4 + 2 * o.kv_heads) * 4}, 1)}, {}), 1e-6);
  });
}

TEST(UnfusedAttention, StoresDropoutMaskAndProbabilitiesBeforeAndAfterDropout) {
  TapeFixture rig;
  const int64_t B = 2, T = 16, heads = 4;
  for (const double rate : {0.0, 0.3}) {
    const AttentionArgs o = options(rig, 4, true, rate, false);
    const Tensor x = rig.random({B, T, 48}, 1, 1, DType::bf16);
    Variable y = unfused_attention(rig.tape, rig.tape.leaf(x), o);
    const uint64_t output = y.value().bytes();
    const uint64_t kept = rig.account.use(device::MemoryCategory::activation).current - output;
    EXPECT_EQ(kept, static_cast<uint64_t>(B * heads * T * T) * (rate > 0 ? 5 : 2));
    y = {};
    rig.tape.clear();
    EXPECT_EQ(rig.account.use(device::MemoryCategory::activation).current, 0u);
  }
}

TEST(ApplyMask, MatchesDropoutWithSameMask) {
  TapeFixture rig;
  const Tensor x = rig.random({3, 8}, 1), ones = rig.random({3, 8}, 2);
  kernel::fill(ones.data(), 1, ones.count(), DType::f64, rig.context.stream);
  const TwoPaths drawn = run(rig, x, [](Tape& t, const Variable& v) { return dropout(t, v, 0.4, {1, 2}); });
  const Tensor mask = tensor::empty(rig.context, x.shape(), DType::u8, device::MemoryCategory::other);
  const Variable left = dropout(rig.tape, ones, 0.4, {1, 2});
  for (int64_t i = 0; i < mask.count(); ++i) mask.as<uint8_t>()[i] = left.value().as<double>()[i] != 0;
  const TwoPaths kept = run(rig, x, [&](Tape& t, const Variable& v) { return apply_mask(t, v, mask, 1 / 0.6); });
  EXPECT_LT(distance(kept.y, drawn.y), 1e-15);
  EXPECT_LT(distance(kept.dx, drawn.dx), 1e-15);
}

}  // namespace
}  // namespace esp::autograd
