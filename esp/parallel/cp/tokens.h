// Token layout of context parallelism: which tokens each rank holds, and which query and key blocks meet. Pure
// functions, shared by the ring, the planner and the pictures.
//
// Contiguous: c even chunks, rank r has the r-th. Zig-zag: 2c even chunks ("pieces"), rank r has pieces r and 2c−1−r,
// one early and one late, so that under a causal mask every rank has equal work at every ring step.
#pragma once

#include <cstdint>
#include <string_view>
#include <vector>

#include "esp/nn/shard.h"

namespace esp::parallel {

enum class ContextLayout : uint8_t { contiguous, zigzag };
std::string_view name_of(ContextLayout layout);

// For any length; adjacent pieces form one run, empty pieces none. Every rank has a token if there are at least as many
// tokens as ranks.
nn::TokenMap context_tokens(ContextLayout layout, int64_t length, int num_ranks, int rank);

// Queries [query, query + num_queries) against keys [key, key + num_keys), in the local order of their ranks.
struct AttentionBlock {
  int64_t query = 0, num_queries = 0, key = 0, num_keys = 0;
  bool causal = false;  // else every query sees every key; offset as in kernel::AttentionShape
  int64_t causal_offset = 0;
  int64_t first_query = 0, first_key = 0;                    // positions of the first ones
  bool is_first_of_queries = true, is_first_of_keys = true;  // in its list

  int64_t num_pairs() const;  // (query, visible key)
  bool operator==(const AttentionBlock&) const = default;
};

// The blocks to compute for the queries of one rank and the keys of another, as few as possible. `by_run`: positions
// within a block are consecutive, which dropout (numbered by position) needs.
std::vector<AttentionBlock> attention_blocks(const nn::TokenMap& queries, const nn::TokenMap& keys, bool causal,
                                             bool by_run);

// Number of local tokens before `position`.
int64_t num_before(const nn::TokenMap& tokens, int64_t position);

}  // namespace esp::parallel
