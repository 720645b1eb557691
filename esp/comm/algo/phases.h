// Phases: parts of algorithms that run over a Line on a piece of memory. Each advances draft.round by what its comment
// says, on every rank.
#pragma once

#include "esp/comm/algo/draft.h"

namespace esp::comm {

// Where a ring starts: `own` ends the reduce-scatter with chunk me at position me; `next` starts one chunk later and
// ends with chunk me + 1 (the shift-0 ring of the textbooks).
enum class RingStart { own, next };

// size-1 rounds. `data` holds this rank's values and then, in its own chunk, the sum; other chunks are left half
// summed. Chunk k adds up x_{k+1}, x_{k+2}, …, x_k (own) or x_k, x_{k+1}, …, x_{k-1} (next).
void ring_reduce_scatter(Draft& draft, const Line& line, const Region& data, RingStart start = RingStart::own);
// size-1 rounds. The chunk owned after the reduce-scatter goes round.
void ring_all_gather(Draft& draft, const Line& line, const Region& data, RingStart start = RingStart::own);
// size-1 rounds. Position me sends its chunk to each of the others.
void pairwise_all_gather(Draft& draft, const Line& line, const Region& data);

// size-1 rounds. Position me collects chunk me of `from` and leaves the sum, in order of positions and rounded once, in
// `into`; size-1 chunks of scratch.
void direct_reduce_scatter(Draft& draft, const Line& line, const Region& from, const Region& into);

// ceil_log2(size) rounds. Binomial, to or from position 0. `sum` holds this rank's values and collects; a rank that
// only sends may pass its input.
void tree_reduce(Draft& draft, const Line& line, const Region& sum);
void tree_broadcast(Draft& draft, const Line& line, const Region& data);
bool is_tree_leaf(const Line& line);
// ceil_log2(size) rounds. Position 0 holds `data`; afterwards position v holds chunks [v, v + its subtree) of it.
void tree_scatter(Draft& draft, const Line& line, const Region& data);

// Other sizes than powers of two, folded: of the first 2·rem ranks the even ones hand everything to their right
// neighbour and sit out. p = 2^k virtual ranks v remain.
struct Fold {
  int p = 1, rem = 0;
  int v = -1;        // this rank's; -1 when it sits out
  int partner = -1;  // the neighbour it is folded with, or -1
  int real(int virtual_rank) const { return virtual_rank < rem ? 2 * virtual_rank + 1 : virtual_rank + rem; }
  int rounds() const { return rem > 0 ? 1 : 0; }
};
Fold fold_of(int rank, int size);
// fold.rounds() rounds. Odd partners add what the even ones send; `data` holds this rank's values.
void fold_in(Draft& draft, const Fold& fold, const Region& data);
// fold.rounds() rounds. They return the result.
void fold_out(Draft& draft, const Fold& fold, const Region& data);

}  // namespace esp::comm
