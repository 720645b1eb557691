// Phases: building blocks of algorithms that run over a RankSequence on one region. Each phase advances builder.round
// by the number of rounds given in its comment, on every rank.
#pragma once

#include "esp/comm/algo/schedule_builder.h"

namespace esp::comm {

// Which chunk a ring starts with. `own`: the reduce-scatter leaves the sum of chunk me at position me. `next`: every
// chunk number is one higher, so it leaves chunk me + 1 (the shift-0 ring of the textbooks).
enum class RingStart { own, next };

// size-1 rounds. Before: `data` holds this rank's values. After: this rank's chunk (see RingStart) holds the sum, and
// the other chunks hold partial sums. The summation order of chunk k is x_{k+1}, x_{k+2}, …, x_k (own) or x_k, x_{k+1},
// …, x_{k-1} (next).
void ring_reduce_scatter(ScheduleBuilder& builder, const RankSequence& sequence, const BufferRegion& data,
                         RingStart start = RingStart::own);
// size-1 rounds. Each rank's chunk from the reduce-scatter travels around the ring once.
void ring_all_gather(ScheduleBuilder& builder, const RankSequence& sequence, const BufferRegion& data,
                     RingStart start = RingStart::own);
// size-1 rounds. Position me sends its chunk to each other position.
void pairwise_all_gather(ScheduleBuilder& builder, const RankSequence& sequence, const BufferRegion& data);

// size-1 rounds. Position me receives chunk me of `from` from all other positions. It adds the chunks in order of
// positions, rounds once and writes the sum to `into`. Needs size-1 chunks of scratch.
void direct_reduce_scatter(ScheduleBuilder& builder, const RankSequence& sequence, const BufferRegion& from,
                           const BufferRegion& into);

// ceil_log2(size) rounds. Binomial tree towards position 0 (reduce) or away from it (broadcast). In reduce, `sum`
// starts as this rank's values and accumulates the sum; a leaf may pass its input region.
void tree_reduce(ScheduleBuilder& builder, const RankSequence& sequence, const BufferRegion& sum);
void tree_broadcast(ScheduleBuilder& builder, const RankSequence& sequence, const BufferRegion& data);
bool is_tree_leaf(const RankSequence& sequence);
// ceil_log2(size) rounds. Before: position 0 holds all of `data`. After: position v holds chunks [v, v + size of v's
// subtree).
void tree_scatter(ScheduleBuilder& builder, const RankSequence& sequence, const BufferRegion& data);

// Reduces a group size that is not a power of two to the next lower power p = 2^k, with rem = size - p. Among the first
// 2·rem ranks, each even rank sends its data to its right neighbour and becomes inactive. The p remaining ranks get the
// virtual ranks v.
struct PowerOfTwoFold {
  int p = 1, rem = 0;
  int v = -1;        // virtual rank of this rank; -1: inactive
  int partner = -1;  // the neighbour this rank is folded with; -1: none
  int real(int virtual_rank) const { return virtual_rank < rem ? 2 * virtual_rank + 1 : virtual_rank + rem; }
  int rounds() const { return rem > 0 ? 1 : 0; }
};
PowerOfTwoFold make_fold(int rank, int size);
// fold.rounds() rounds. Each odd partner adds the data sent by its even partner; `data` holds this rank's values.
void fold_in(ScheduleBuilder& builder, const PowerOfTwoFold& fold, const BufferRegion& data);
// fold.rounds() rounds. Each odd partner sends the result back to its even partner.
void fold_out(ScheduleBuilder& builder, const PowerOfTwoFold& fold, const BufferRegion& data);

}  // namespace esp::comm
