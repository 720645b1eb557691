// Compares ring and Ulysses attention on 1 to 4 ranks with self attention on one device.
#include <cstring>

#include <fmt/format.h>
#include <gtest/gtest.h>

#include "esp/autograd/functions/pointwise.h"
#include "esp/autograd/recompute.h"
#include "esp/base/error.h"
#include "esp/base/rng.h"
#include "esp/comm/fake.h"
#include "esp/parallel/cp/ring.h"
#include "esp/parallel/cp/testing.h"
#include "esp/parallel/cp/ulysses.h"

namespace esp::parallel {
namespace {

using autograd::distance;
using autograd::Tape;
using autograd::Variable;

AttentionResult single_device_ops(const AttentionCase& p) {
  return attend(p, 0, nullptr, ContextLayout::contiguous);
}

void expect_near(const AttentionResult& got, const AttentionResult& want, double tolerance, const std::string& where) {
  EXPECT_LE(distance(got.o, want.o), tolerance) << "o, " << where;
  EXPECT_LE(distance(got.dqkv, want.dqkv), tolerance) << "gradient of qkv, " << where;
}

std::string name(const AttentionCase& p, int c) {
  return fmt::format("{} {} tokens, {}/{} heads, causal {}, {} padded, dropout {}, {} ranks", name_of(p.dtype), p.T,
                     p.options.heads, p.options.kv_heads, p.options.causal, p.lengths.size(), p.options.dropout, c);
}

// Cases: sequence lengths that are divisible by the number of ranks and lengths that are not, padding (one sequence has
// only padding), grouped-query attention, dropout.
std::vector<AttentionCase> problems(DType dtype) {
  std::vector<AttentionCase> all;
  for (bool causal : {false, true}) {
    all.push_back(problem(48, 4, 4, causal, dtype));
    all.push_back(problem(37, 4, 2, causal, dtype));
    all.push_back(problem(5, 2, 1, causal, dtype));
    all.push_back(problem(37, 4, 1, causal, dtype));
    all.back().lengths = {9, 30};
    all.push_back(problem(24, 2, 2, causal, dtype));
    all.back().lengths = {0, 24};
    all.push_back(problem(37, 4, 2, causal, dtype));
    all.back().options.dropout = 0.3;
    all.back().options.first_sequence = 6;
    all.back().options.first_head = 2;
    all.back().options.all_heads = 8;
    all.push_back(problem(30, 4, 4, causal, dtype));
    all.back().options.dropout = 0.2;
    all.back().lengths = {30, 11};
    all.push_back(problem(150, 2, 1, causal, dtype));
    all.back().B = 1;
  }
  return all;
}

TEST(RingAttention, MatchesSelfAttentionOfWholeSequence) {
  for (const AttentionCase& p : problems(DType::f64)) {
    const AttentionResult want = single_device_ops(p);
    for (int c : {1, 2, 3, 4})
      for (ContextLayout layout : {ContextLayout::zigzag, ContextLayout::contiguous})
        expect_near(attend(p, c, ring_attention, layout), want, 1e-12, name(p, c));
  }
}

// Random shapes from a fixed seed.
TEST(RingAttention, MatchesSelfAttentionForRandomShapes) {
  for (uint64_t draw = 0; draw < 40; ++draw) {
    uint64_t number = 0;
    auto below = [&](int64_t n) {
      return static_cast<int64_t>(random_bits(17, draw, number++) % static_cast<uint64_t>(n));
    };
    const int c = static_cast<int>(2 + below(4));
    const int64_t groups = 1 + below(3);
    AttentionCase p = problem(c + below(90), groups * (1 + below(3)), groups, below(2) == 0);
    p.B = 1 + below(3);
    p.options.head_dim = 1 + below(20);
    if (below(2) == 0) p.options.dropout = 0.4;
    if (below(2) == 0)
      for (int64_t b = 0; b < p.B; ++b) p.lengths.push_back(static_cast<int32_t>(below(p.T + 1)));
    const ContextLayout layout = below(3) == 0 ? ContextLayout::contiguous : ContextLayout::zigzag;
    const AttentionResult want = single_device_ops(p);
    expect_near(attend(p, c, ring_attention, layout), want, 1e-12, name(p, c) + fmt::format(", draw {}", draw));
    if (ulysses_violation(p.options.heads, p.options.kv_heads, c).empty())
      expect_near(attend(p, c, ulysses_attention, ContextLayout::contiguous), want, 1e-12, name(p, c));
  }
}

TEST(RingAttention, ApproximatesSelfAttentionInEveryType) {
  for (DType dtype : {DType::f32, DType::bf16, DType::f16})
    for (const AttentionCase& p : problems(dtype)) {
      const double tolerance = dtype == DType::f32 ? 1e-6 : dtype == DType::bf16 ? 1e-2 : 1e-3;
      const AttentionResult want = single_device_ops(p);
      for (int c : {2, 3})
        expect_near(attend(p, c, ring_attention, ContextLayout::zigzag), want, tolerance, name(p, c));
    }
}

TEST(RingAttention, LargeScoresStayFinite) {
  AttentionCase p = problem(64, 2, 2, true);
  p.scale = 30;  // the scores are in the thousands, so whole blocks have zero weight
  expect_near(attend(p, 4, ring_attention, ContextLayout::zigzag), single_device_ops(p), 1e-9, name(p, 4));
}

TEST(UlyssesAttention, MatchesOneDeviceBitForBit) {
  for (DType dtype : {DType::f64, DType::f32, DType::bf16, DType::f16})
    for (const AttentionCase& p : problems(dtype)) {
      const AttentionResult want = single_device_ops(p);
      for (int c : {1, 2, 4}) {
        if (!ulysses_violation(p.options.heads, p.options.kv_heads, c).empty()) continue;
        const AttentionResult got = attend(p, c, ulysses_attention, ContextLayout::contiguous);
        EXPECT_EQ(got.o, want.o) << name(p, c);
        if (p.options.kv_heads % c == 0) {
          EXPECT_EQ(got.dqkv, want.dqkv) << name(p, c);
        } else {  // the gradients of replicated key/value heads are summed in another order
          const double places = dtype == DType::f64 ? 1e-15 : dtype == DType::f32 ? 1e-6 : 2e-2;
          EXPECT_LE(distance(got.dqkv, want.dqkv), places) << name(p, c);
        }
      }
    }
}

TEST(UlyssesAttention, RejectsHeadsNotDivisibleByRanks) {
  EXPECT_EQ(ulysses_violation(12, 4, 2), "");
  EXPECT_EQ(ulysses_violation(12, 2, 4), "");
  EXPECT_EQ(ulysses_violation(10, 10, 4), "got 10 heads, 4 ranks; expected heads to be a multiple of ranks");
  EXPECT_NE(ulysses_violation(12, 3, 4), "");
  EXPECT_THROW(attend(problem(20, 3, 3, true), 2, ulysses_attention, ContextLayout::contiguous), UsageError);
}

TEST(ContextParallel, RecomputationGivesSameGradients) {
  const AttentionCase p = problem(26, 4, 2, true);
  for (Attention attention : {ring_attention, ulysses_attention}) {
    const ContextLayout layout = attention == ring_attention ? ContextLayout::zigzag : ContextLayout::contiguous;
    const AttentionResult want = attend(p, 2, attention, layout);
    const auto again = [&](Tape& tape, const Variable& x, const autograd::AttentionArgs& options,
                           const ContextGroup& group) {
      return autograd::recompute(tape, x, [=](Tape& t, const Variable& v) { return attention(t, v, options, group); });
    };
    const AttentionResult got = attend(p, 2, nullptr, layout, nullptr, again);
    EXPECT_EQ(got.o, want.o);
    EXPECT_EQ(got.dqkv, want.dqkv);
  }
}

// qkv has two uses. When backward reaches the first use, the gradient of qkv already contains that of the second use.
TEST(ContextParallel, AccumulatesIntoExistingGradient) {
  const AttentionCase p = problem(26, 4, 2, true);
  const AttentionResult once = attend(p, 2, ring_attention, ContextLayout::zigzag);
  const auto twice = [](Tape& tape, const Variable& x, const autograd::AttentionArgs& options,
                        const ContextGroup& group) {
    return autograd::add(tape, ring_attention(tape, x, options, group), ring_attention(tape, x, options, group));
  };
  const AttentionResult got = attend(p, 2, nullptr, ContextLayout::zigzag, nullptr, twice);
  for (size_t i = 0; i < got.dqkv.size(); ++i) ASSERT_EQ(got.dqkv[i], 2 * once.dqkv[i]);
}

TEST(ContextParallel, RotaryUsesPositionsInWholeSequence) {
  const AttentionCase p = problem(29, 4, 2, true);
  static constexpr kernel::RotaryAngles kAngles{
      .theta = 100, .scaling = kernel::RopeScaling::yarn, .factor = 2, .original_seq_len = 16};
  const auto turned = [](Tape& tape, const Variable& x, const autograd::AttentionArgs& o, const ContextGroup& group) {
    const nn::TokenMap tokens = group.tokens(group.rank());
    const Variable y = rotary(tape, x, o.heads + o.kv_heads, o.head_dim, tokens, kAngles);
    return ring_attention(tape, y, o, group);
  };
  // A single rank holds all tokens from position 0: the result must equal plain rotary, then self attention.
  const AttentionResult want = attend(p, 1, nullptr, ContextLayout::zigzag, nullptr, turned);
  const auto plain = [](Tape& tape, const Variable& x, const autograd::AttentionArgs& o, const ContextGroup&) {
    return autograd::self_attention(tape, autograd::rotary(tape, x, o.heads + o.kv_heads, o.head_dim, 0, kAngles), o);
  };
  const AttentionResult one = attend(p, 1, nullptr, ContextLayout::zigzag, nullptr, plain);
  EXPECT_EQ(want.o, one.o);
  EXPECT_EQ(want.dqkv, one.dqkv);
  EXPECT_GT(distance(want.o, single_device_ops(p).o), 1e-3);  // checks that rotary positions change the result
  for (int c : {2, 3, 4})
    expect_near(attend(p, c, nullptr, ContextLayout::zigzag, nullptr, turned), want, 1e-12, name(p, c));
}

TEST(ContextParallel, RejectsTooShortSequenceBeforeSending) {
  EXPECT_THROW(attend(problem(3, 4, 4, true), 4, ring_attention, ContextLayout::zigzag), std::exception);
}

// If a rank leaves mid-call, the other ranks detect it at once; none waits until the deadline.
TEST(ContextParallel, FailingRankReleasesOtherRanks) {
  const AttentionCase p = problem(24, 4, 4, true);
  const auto leaving = [](Tape& tape, const Variable& x, const autograd::AttentionArgs& options,
                          const ContextGroup& group) {
    if (group.rank() == 1) throw IoError("gone");
    return ring_attention(tape, x, options, group);
  };
  try {
    attend(p, 3, nullptr, ContextLayout::zigzag, nullptr, leaving);
    FAIL() << "the failure was not detected";
  } catch (const IoError& error) {
    EXPECT_STREQ(error.what(), "gone");
  }
}

// Bytes sent per rank: (c−1)·q in forward; in backward (c−1)·q and, for the gradient sums (in the accumulation type),
// c·q. Here q is the size of 2·b·(s/c)·h_kv elements.
TEST(RingAttention, TrafficMatchesFormula) {
  for (DType dtype : {DType::f64, DType::f32, DType::bf16})
    for (int c : {2, 3, 4}) {
      const AttentionCase p = problem(24, 4, 2, true, dtype);
      std::vector<AttentionTrace> traces;
      attend(p, c, ring_attention, ContextLayout::zigzag, &traces);
      const uint64_t elements = static_cast<uint64_t>(2 * p.B * p.T / c * p.options.kv_heads * p.options.head_dim);
      const uint64_t q = elements * size_of(dtype), sums = elements * size_of(tensor::accumulation_type(dtype));
      const auto ranks = static_cast<uint64_t>(c);
      for (const AttentionTrace& trace : traces) {
        EXPECT_EQ(sent(trace.forward), (ranks - 1) * q) << name(p, c);
        EXPECT_EQ(sent(trace.both) - sent(trace.forward), (ranks - 1) * q + ranks * sums) << name(p, c);
      }
    }
}

// The planner counts traffic with a fake communicator, which simulates one rank of a large group.
TEST(RingAttention, FakeCommunicatorTrafficMatchesFormula) {
  constexpr int kRanks = 64;
  const AttentionCase p = problem(2 * kRanks, 2, 1, true, DType::bf16);
  for (int rank : {0, 5, kRanks - 1}) {
    const auto comm = comm::make_fake(rank, kRanks);
    ContextGroup group;
    group.comm = comm.get();
    group.length = p.T;
    autograd::TapeFixture rig;
    const Variable leaf = rig.tape.leaf(rig.random({p.B, 2, p.row()}, 1, 1, p.dtype));
    const Variable y = ring_attention(rig.tape, leaf, p.options, group);
    const uint64_t q = static_cast<uint64_t>(2 * p.B * 2 * p.options.head_dim) * size_of(p.dtype);
    EXPECT_EQ(sent(comm->stats()), (kRanks - 1) * q);
    rig.tape.seed(y, rig.random(y.shape(), 2, 1, p.dtype));
    rig.tape.backward();
    EXPECT_EQ(sent(comm->stats()), 2 * (kRanks - 1) * q + kRanks * 2 * q);
  }
}

// Forward and backward each exchange four tensors (q, k, v, o) of b·(s/c)·h elements; a rank sends (c−1)/c of each.
TEST(UlyssesAttention, TrafficMatchesFormula) {
  for (DType dtype : {DType::f64, DType::bf16})
    for (int c : {2, 4}) {
      const AttentionCase p = problem(24, 4, 4, true, dtype);
      std::vector<AttentionTrace> traces;
      attend(p, c, ulysses_attention, ContextLayout::contiguous, &traces);
      const auto ranks = static_cast<uint64_t>(c);
      const uint64_t bytes =
          4 * (ranks - 1) * static_cast<uint64_t>(p.B * p.T * p.q_width()) / ranks / ranks * size_of(dtype);
      for (const AttentionTrace& trace : traces) {
        EXPECT_EQ(sent(trace.forward), bytes) << name(p, c);
        EXPECT_EQ(sent(trace.both) - sent(trace.forward), bytes) << name(p, c);
      }
    }
}

}  // namespace
}  // namespace esp::parallel
