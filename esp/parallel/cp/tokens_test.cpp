#include "esp/parallel/cp/tokens.h"

#include <algorithm>
#include <vector>

#include <gtest/gtest.h>

namespace esp::parallel {
namespace {

using nn::TokenMap;
using nn::TokenRun;

TEST(ContextTokens, PlacesEachTokenOnExactlyOneRank) {
  for (ContextLayout layout : {ContextLayout::contiguous, ContextLayout::zigzag})
    for (int c : {1, 2, 3, 4, 7})
      for (int64_t length : {0, 1, 2, 5, 16, 17, 63, 96}) {
        std::vector<int> holders(static_cast<size_t>(length));
        for (int r = 0; r < c; ++r) {
          const TokenMap map = context_tokens(layout, length, c, r);
          EXPECT_EQ(map.length, length);
          EXPECT_TRUE(map.count() > 0 || length < c) << length << " tokens, rank " << r << " of " << c;
          int64_t end = -1;  // the contiguous ranges are in ascending order, with gaps between them
          for (const TokenRun& run : map.runs) {
            EXPECT_GT(run.count, 0);
            EXPECT_GT(run.first, end);
            end = run.first + run.count;
            for (int64_t t = run.first; t < end; ++t) ++holders[static_cast<size_t>(t)];
          }
        }
        EXPECT_TRUE(std::all_of(holders.begin(), holders.end(), [](int n) { return n == 1; }));
      }
}

TEST(ContextTokens, ZigZagGivesEachRankOneEarlyAndOneLatePiece) {
  EXPECT_EQ(context_tokens(ContextLayout::zigzag, 80, 4, 0).runs, (std::vector<TokenRun>{{0, 10}, {70, 10}}));
  EXPECT_EQ(context_tokens(ContextLayout::zigzag, 80, 4, 1).runs, (std::vector<TokenRun>{{10, 10}, {60, 10}}));
  EXPECT_EQ(context_tokens(ContextLayout::zigzag, 80, 4, 3).runs, (std::vector<TokenRun>{{30, 20}}));
  // 11 tokens are cut into pieces of 2, 2, 2, 2, 2, 1.
  EXPECT_EQ(context_tokens(ContextLayout::zigzag, 11, 3, 0).runs, (std::vector<TokenRun>{{0, 2}, {10, 1}}));
  EXPECT_EQ(context_tokens(ContextLayout::zigzag, 11, 3, 2).runs, (std::vector<TokenRun>{{4, 4}}));
  EXPECT_EQ(context_tokens(ContextLayout::contiguous, 11, 3, 1).runs, (std::vector<TokenRun>{{4, 4}}));
}

// Number of (query, visible key) pairs computed at each step on each rank: [step][rank].
std::vector<std::vector<int64_t>> work(ContextLayout layout, int64_t length, int c) {
  std::vector<std::vector<int64_t>> steps;
  for (int j = 0; j < c; ++j) {
    steps.emplace_back();
    for (int r = 0; r < c; ++r) {
      int64_t pairs = 0;
      for (const AttentionBlock& block : attention_blocks(
               context_tokens(layout, length, c, r), context_tokens(layout, length, c, (r + c - j) % c), true, false))
        pairs += block.num_pairs();
      steps.back().push_back(pairs);
    }
  }
  return steps;
}

TEST(AttentionBlocks, ZigZagBalancesWorkAtEveryStep) {
  const int64_t piece = 12;
  for (int c : {1, 2, 3, 4, 8}) {
    const auto steps = work(ContextLayout::zigzag, 2 * c * piece, c);
    for (int r = 0; r < c; ++r) {
      // In step 0 every rank computes two triangles and a square, in every other step two squares.
      EXPECT_EQ(steps[0][static_cast<size_t>(r)], piece * piece + piece * (piece + 1));
      for (int j = 1; j < c; ++j) EXPECT_EQ(steps[static_cast<size_t>(j)][static_cast<size_t>(r)], 2 * piece * piece);
    }
  }
}

TEST(AttentionBlocks, ContiguousPlacementGivesLastRankMostWork) {
  const int c = 4;
  const int64_t chunk = 10;
  const auto steps = work(ContextLayout::contiguous, c * chunk, c);
  for (int r = 0; r < c; ++r) {
    // work of this rank, in units of chunk²/2 query-key pairs; expected 1, 3, 5, 7 on ranks 0 to 3
    int64_t halves = 0;
    for (int j = 0; j < c; ++j) halves += steps[static_cast<size_t>(j)][static_cast<size_t>(r)] * 2 / (chunk * chunk);
    EXPECT_EQ(halves, 2 * r + 1);
    for (int j = 1; j < c; ++j)
      EXPECT_EQ(steps[static_cast<size_t>(j)][static_cast<size_t>(r)], j <= r ? chunk * chunk : 0);
  }
}

// The positions of a map's tokens.
std::vector<int64_t> positions(const TokenMap& map) {
  std::vector<int64_t> all;
  for (const TokenRun& run : map.runs)
    for (int64_t t = 0; t < run.count; ++t) all.push_back(run.first + t);
  return all;
}

TEST(AttentionBlocks, UnionOfBlocksEqualsMask) {
  for (ContextLayout layout : {ContextLayout::contiguous, ContextLayout::zigzag})
    for (bool causal : {false, true})
      for (bool by_run : {false, true})
        for (int c : {1, 2, 3, 5})
          for (int64_t length : {5, 23, 40})
            for (int r = 0; r < c; ++r)
              for (int v = 0; v < c; ++v) {
                const TokenMap queries = context_tokens(layout, length, c, r),
                               keys = context_tokens(layout, length, c, v);
                const auto q = positions(queries), k = positions(keys);
                std::vector<int> seen(q.size() * k.size());
                const auto blocks = attention_blocks(queries, keys, causal, by_run);
                EXPECT_LE(blocks.size(), by_run ? 4u : 1u);
                for (const AttentionBlock& b : blocks) {
                  EXPECT_EQ(b.first_query, q[static_cast<size_t>(b.query)]);
                  EXPECT_EQ(b.first_key, k[static_cast<size_t>(b.key)]);
                  int64_t pairs = 0;
                  for (int64_t i = 0; i < b.num_queries; ++i)
                    for (int64_t j = 0; j < b.num_keys; ++j)
                      if (!b.causal || j <= i + b.causal_offset) {
                        ++pairs;
                        ++seen[static_cast<size_t>(b.query + i) * k.size() + static_cast<size_t>(b.key + j)];
                      }
                  EXPECT_EQ(b.num_pairs(), pairs);
                }
                for (size_t i = 0; i < q.size(); ++i)
                  for (size_t j = 0; j < k.size(); ++j)
                    ASSERT_EQ(seen[i * k.size() + j], !causal || k[j] <= q[i]) << q[i] << " sees " << k[j];
              }
}

TEST(AttentionBlocks, EachBlockHasConsecutivePositions) {
  const TokenMap own = context_tokens(ContextLayout::zigzag, 40, 2, 0);  // positions 0..9 and 30..39
  const std::vector<AttentionBlock> blocks = attention_blocks(own, own, true, true);
  ASSERT_EQ(blocks.size(), 3u);
  EXPECT_EQ(blocks[0], (AttentionBlock{0, 10, 0, 10, true, 0, 0, 0, true, true}));
  EXPECT_EQ(blocks[1], (AttentionBlock{10, 10, 0, 10, false, 0, 30, 0, true, false}));
  EXPECT_EQ(blocks[2], (AttentionBlock{10, 10, 10, 10, true, 0, 30, 30, false, true}));
}

TEST(NumBefore, CountsLocalTokensBeforePosition) {
  const TokenMap map{{{2, 3}, {10, 4}}, 20};
  EXPECT_EQ(num_before(map, 0), 0);
  EXPECT_EQ(num_before(map, 3), 1);
  EXPECT_EQ(num_before(map, 7), 3);
  EXPECT_EQ(num_before(map, 12), 5);
  EXPECT_EQ(num_before(map, 20), 7);
}

}  // namespace
}  // namespace esp::parallel
