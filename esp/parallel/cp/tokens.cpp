#include "esp/parallel/cp/tokens.h"

#include <algorithm>

#include "esp/base/check.h"

namespace esp::parallel {
namespace {

using nn::TokenMap;
using nn::TokenRun;

void append(TokenMap& map, const nn::IndexRange& piece) {
  if (piece.count() == 0) return;
  if (!map.runs.empty() && map.runs.back().first + map.runs.back().count == piece.begin)
    map.runs.back().count += piece.count();
  else
    map.runs.push_back({piece.begin, piece.count()});
}

// Computes the block of one contiguous query range and one contiguous key range. Returns false if no query sees a key.
bool block_of(AttentionBlock& block, const TokenRun& queries, int64_t query, const TokenRun& keys, int64_t key,
              bool causal) {
  if (causal && keys.first > queries.first + queries.count - 1) return false;
  block = {query, queries.count, key, keys.count, false, 0, queries.first, keys.first};
  if (causal && keys.first + keys.count - 1 > queries.first) {
    block.causal = true;
    block.causal_offset = queries.first - keys.first;
  }
  return true;
}

// Merges two adjacent blocks in which every query sees every key.
bool merge(AttentionBlock& a, const AttentionBlock& b) {
  if (a.causal || b.causal) return false;
  if (a.query == b.query && a.num_queries == b.num_queries && a.key + a.num_keys == b.key) {
    a.num_keys += b.num_keys;
    return true;
  }
  if (a.key == b.key && a.num_keys == b.num_keys && a.query + a.num_queries == b.query) {
    a.num_queries += b.num_queries;
    return true;
  }
  return false;
}

// Merges all blocks into one rectangle: first along the keys of each query range, then along the queries. Returns false
// if they form no rectangle.
bool merge_all(AttentionBlock& one, const std::vector<AttentionBlock>& blocks) {
  AttentionBlock row;
  for (size_t i = 0; i < blocks.size(); ++i) {
    const bool begins_row = i == 0 || blocks[i].query != blocks[i - 1].query;
    if (begins_row)
      row = blocks[i];
    else if (!merge(row, blocks[i]))
      return false;
    if (i + 1 < blocks.size() && blocks[i + 1].query == blocks[i].query) continue;
    if (row.query == blocks[0].query)
      one = row;
    else if (!merge(one, row))
      return false;
  }
  return !blocks.empty();
}

}  // namespace

std::string_view name_of(ContextLayout layout) {
  return layout == ContextLayout::zigzag ? "zig-zag" : "contiguous";
}

TokenMap context_tokens(ContextLayout layout, int64_t length, int num_ranks, int rank) {
  ESP_CHECK(rank >= 0 && rank < num_ranks && length >= 0, "rank: got {}; expected 0 <= rank < {}", rank, num_ranks);
  TokenMap map;
  map.length = length;
  if (layout == ContextLayout::contiguous) {
    append(map, nn::Shard{rank, num_ranks}.of(length));
  } else {
    append(map, nn::Shard{rank, 2 * num_ranks}.of(length));
    append(map, nn::Shard{2 * num_ranks - 1 - rank, 2 * num_ranks}.of(length));
  }
  return map;
}

int64_t AttentionBlock::num_pairs() const {
  if (!causal) return num_queries * num_keys;
  int64_t sum = 0;
  for (int64_t i = 0; i < num_queries; ++i) sum += std::clamp<int64_t>(i + causal_offset + 1, 0, num_keys);
  return sum;
}

std::vector<AttentionBlock> attention_blocks(const TokenMap& queries, const TokenMap& keys, bool causal, bool by_run) {
  std::vector<AttentionBlock> blocks;
  if (!by_run && queries == keys && queries.count() > 0) {
    // Queries and keys are the same tokens, sorted by position. So the causal mask by local index is equal to the
    // causal mask by position, and one block is enough.
    const int64_t n = queries.count();
    blocks.push_back({0, n, 0, n, causal, 0, queries.runs[0].first, keys.runs[0].first});
    return blocks;
  }
  int64_t query = 0;
  for (const TokenRun& q : queries.runs) {
    int64_t key = 0;
    for (const TokenRun& k : keys.runs) {
      AttentionBlock block;
      if (block_of(block, q, query, k, key, causal)) blocks.push_back(block);
      key += k.count;
    }
    query += q.count;
  }
  if (AttentionBlock one; !by_run && merge_all(one, blocks)) return {one};
  for (size_t i = 0; i < blocks.size(); ++i)
    for (size_t before = 0; before < i; ++before) {
      if (blocks[before].query == blocks[i].query) blocks[i].is_first_of_queries = false;
      if (blocks[before].key == blocks[i].key) blocks[i].is_first_of_keys = false;
    }
  return blocks;
}

int64_t num_before(const TokenMap& tokens, int64_t position) {
  int64_t count = 0;
  for (const TokenRun& run : tokens.runs) count += std::clamp<int64_t>(position - run.first, 0, run.count);
  return count;
}

}  // namespace esp::parallel
