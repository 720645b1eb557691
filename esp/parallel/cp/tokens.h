// Token layout of context parallelism: which tokens each rank holds, and which blocks of queries and keys interact.
// Pure functions, shared by the ring, the planner and the figures.
//
// Contiguous: the sequence is cut into c even chunks; rank r has chunk r. Zig-zag: the sequence is cut into 2c even
// pieces; rank r has pieces r and 2c−1−r, one early and one late. Under a causal mask every rank then has equal work at
// every ring step.
#pragma once

#include <cstdint>
#include <string_view>
#include <vector>

#include "esp/nn/shard.h"

namespace esp::parallel {

enum class ContextLayout : uint8_t { contiguous, zigzag };
std::string_view name_of(ContextLayout layout);

// Works for any length. Adjacent pieces are merged into one contiguous range, and empty pieces are omitted. Every rank
// has at least one token if there are at least as many tokens as ranks.
nn::TokenMap context_tokens(ContextLayout layout, int64_t length, int num_ranks, int rank);

// Queries [query, query + num_queries) against keys [key, key + num_keys), in the local token order of their ranks.
struct AttentionBlock {
  int64_t query = 0, num_queries = 0, key = 0, num_keys = 0;
  bool causal = false;  // false: every query sees every key; true: causal_offset as in kernel::AttentionShape
  int64_t causal_offset = 0;
  int64_t first_query = 0, first_key = 0;  // positions of the first query and the first key in the sequence
  // True for the first block in the list with these queries, and for the first block with these keys.
  bool is_first_of_queries = true, is_first_of_keys = true;

  int64_t num_pairs() const;  // number of (query, visible key) pairs
  bool operator==(const AttentionBlock&) const = default;
};

// The smallest list of blocks for the queries of one rank and the keys of another. With `by_run`, the positions within
// a block are consecutive. Dropout requires this, because its random numbers are indexed by position.
std::vector<AttentionBlock> attention_blocks(const nn::TokenMap& queries, const nn::TokenMap& keys, bool causal,
                                             bool by_run);

// Number of local tokens before `position`.
int64_t num_before(const nn::TokenMap& tokens, int64_t position);

}  // namespace esp::parallel
