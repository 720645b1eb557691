// Which tokens of a sequence each rank of the context axis holds, and which of its queries meet which visiting keys:
// pure functions, for the ring, for the planner and for whoever draws it.
//
// Contiguous: c even chunks, rank r has the r-th. Zig-zag: 2c even chunks ("pieces"), rank r has pieces r and 2c−1−r,
// one early and one late, so that under a causal mask every rank has the same work at every step of the ring.
#pragma once

#include <cstdint>
#include <string_view>
#include <vector>

#include "esp/nn/share.h"

namespace esp::parallel {

enum class ContextLayout : uint8_t { contiguous, zigzag };
std::string_view name_of(ContextLayout layout);

// Of any length; neighbouring pieces are one run, empty ones none. Every rank has a token where there are as many as
// ranks.
nn::TokenMap context_tokens(ContextLayout layout, int64_t length, int num_ranks, int rank);

// Queries [query, query + num_queries) against keys [key, key + num_keys), counted in the order the holders have them.
struct AttentionBlock {
  int64_t query = 0, num_queries = 0, key = 0, num_keys = 0;
  bool causal = false;  // else every query sees every key; offset as in kernel::AttentionShape
  int64_t causal_offset = 0;
  int64_t first_query = 0, first_key = 0;                    // positions of the first ones
  bool is_first_of_queries = true, is_first_of_keys = true;  // in its list

  int64_t num_pairs() const;  // of a query and a key it sees
  bool operator==(const AttentionBlock&) const = default;
};

// What there is to compute when the holder of `queries` is visited by `keys`, in as few blocks as can be. `by_run`:
// positions within a block are consecutive, which dropout, numbered by position, needs.
std::vector<AttentionBlock> attention_blocks(const nn::TokenMap& queries, const nn::TokenMap& keys, bool causal,
                                             bool by_run);

// How many of the tokens held stand before `position`.
int64_t num_before(const nn::TokenMap& tokens, int64_t position);

}  // namespace esp::parallel
