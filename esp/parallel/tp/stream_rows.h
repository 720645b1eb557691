// Maps the rows of the local stream to rows of the whole batch. With context parallelism, a rank has contiguous token
// ranges of each sequence (nn::TokenMap). With sequence parallelism, a rank has only a part of the concatenated tokens
// of these sequences.
#pragma once

#include <algorithm>

#include "esp/nn/forward_context.h"

namespace esp::parallel {

struct StreamRows {
  int64_t first = 0, count = 0;       // range of local rows among the rows of the micro-batch on this context rank
  int64_t tokens = 0;                 // tokens per sequence on this context rank
  int64_t first_sequence = 0;         // first sequence of the micro-batch, as an index in the whole batch
  const nn::TokenMap* map = nullptr;  // null: all tokens are local

  int64_t length() const { return map ? map->length : tokens; }

  // Calls f(row, global_row, count) for each range of rows that is contiguous both locally and in the whole batch. Row
  // (s, position) of the batch is s·length + position.
  template <typename F>
  void for_each_range(F&& f) const {
    const nn::TokenRun all{0, tokens};
    const nn::TokenRun* runs = map ? map->runs.data() : &all;
    const size_t num_runs = map ? map->runs.size() : 1;
    int64_t row = 0, global = 0, length_so_far = 0;  // the range that is being accumulated
    const int64_t last = first + count;
    for (int64_t s = first / tokens; s * tokens < last; ++s) {
      int64_t at = s * tokens;
      for (size_t i = 0; i < num_runs; at += runs[i].count, ++i) {
        const int64_t begin = std::max(at, first), end = std::min(at + runs[i].count, last);
        if (begin >= end) continue;
        const int64_t here = (first_sequence + s) * length() + runs[i].first + (begin - at);
        if (length_so_far > 0 && global + length_so_far == here) {
          length_so_far += end - begin;
          continue;
        }
        if (length_so_far > 0) f(row, global, length_so_far);
        row = begin - first;
        global = here;
        length_so_far = end - begin;
      }
    }
    if (length_so_far > 0) f(row, global, length_so_far);
  }
};

}  // namespace esp::parallel
