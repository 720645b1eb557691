// Phases: parts of algorithms that run over a RankSequence on one region. Each advances builder.round on every rank by
// the number of rounds its comment gives.
#pragma once

#include "esp/comm/algo/schedule_builder.h"

namespace esp::comm {

// Where a ring starts: `own` ends the reduce-scatter with chunk me at position me; `next` starts one chunk later and
// ends with chunk me + 1 (the shift-0 ring of the textbooks).
enum class RingStart { own, next };

// size-1 rounds. `data` holds this rank's values. Afterwards its own chunk holds the sum, and the other chunks hold
// partial sums. Chunk k adds x_{k+1}, x_{k+2}, …, x_k (own) or x_k, x_{k+1}, …, x_{k-1} (next).
void ring_reduce_scatter(ScheduleBuilder& builder, const RankSequence& sequence, const BufferRegion& data,
                         RingStart start = RingStart::own);
// size-1 rounds. Each rank's chunk from the reduce-scatter travels once round the ring.
void ring_all_gather(ScheduleBuilder& builder, const RankSequence& sequence, const BufferRegion& data,
                     RingStart start = RingStart::own);
// size-1 rounds. Position me sends its chunk to each of the others.
void pairwise_all_gather(ScheduleBuilder& builder, const RankSequence& sequence, const BufferRegion& data);

// size-1 rounds. Position me receives chunk me of `from` from all others and writes the sum, in order of positions and
// rounded once, to `into`. Needs size-1 chunks of scratch.
void direct_reduce_scatter(ScheduleBuilder& builder, const RankSequence& sequence, const BufferRegion& from,
                           const BufferRegion& into);

// ceil_log2(size) rounds. Binomial tree to or from position 0. `sum` holds this rank's values and accumulates; a leaf
// may pass its input.
void tree_reduce(ScheduleBuilder& builder, const RankSequence& sequence, const BufferRegion& sum);
void tree_broadcast(ScheduleBuilder& builder, const RankSequence& sequence, const BufferRegion& data);
bool is_tree_leaf(const RankSequence& sequence);
// ceil_log2(size) rounds. Position 0 holds `data`; afterwards position v holds chunks [v, v + its subtree) of it.
void tree_scatter(ScheduleBuilder& builder, const RankSequence& sequence, const BufferRegion& data);

// Sizes that are not powers of two are folded: among the first 2·rem ranks, each even rank sends its data to its right
// neighbour and pauses. p = 2^k virtual ranks v remain.
struct Fold {
  int p = 1, rem = 0;
  int v = -1;        // virtual rank of this rank; -1: paused
  int partner = -1;  // the neighbour it is folded with, or -1
  int real(int virtual_rank) const { return virtual_rank < rem ? 2 * virtual_rank + 1 : virtual_rank + rem; }
  int rounds() const { return rem > 0 ? 1 : 0; }
};
Fold fold_of(int rank, int size);
// fold.rounds() rounds. Odd partners add what the even ranks send; `data` holds this rank's values.
void fold_in(ScheduleBuilder& builder, const Fold& fold, const BufferRegion& data);
// fold.rounds() rounds. Odd partners return the result.
void fold_out(ScheduleBuilder& builder, const Fold& fold, const BufferRegion& data);

}  // namespace esp::comm
