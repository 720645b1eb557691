// Binomial trees over a rank sequence in which position 0 is the root. For mask = 1, 2, 4, … a position v that is a
// multiple of 2·mask has the child v + mask. Broadcast visits the masks in descending order, reduce in ascending order.
#include <algorithm>

#include "esp/comm/algo/phases.h"

namespace esp::comm {

bool is_tree_leaf(const RankSequence& sequence) {
  return sequence.me % 2 == 1 || sequence.me + 1 >= sequence.size();
}

void tree_reduce(ScheduleBuilder& builder, const RankSequence& sequence, const BufferRegion& sum) {
  int v = sequence.me, n = sequence.size();
  for (int mask = 1; mask < n; mask *= 2, ++builder.round) {
    if (v < 0) continue;
    if (v % (2 * mask) == mask) builder.send(sequence.at(v - mask), sum);
    if (v % (2 * mask) == 0 && v + mask < n) builder.receive_reduce(sequence.at(v + mask), sum);
  }
}

void tree_broadcast(ScheduleBuilder& builder, const RankSequence& sequence, const BufferRegion& data) {
  int v = sequence.me, n = sequence.size();
  for (int mask = 1 << ceil_log2(n) >> 1; mask > 0; mask /= 2, ++builder.round) {
    if (v < 0) continue;
    if (v % (2 * mask) == 0 && v + mask < n) builder.send(sequence.at(v + mask), data);
    if (v % (2 * mask) == mask) builder.receive(sequence.at(v - mask), data);
  }
}

void tree_scatter(ScheduleBuilder& builder, const RankSequence& sequence, const BufferRegion& data) {
  int v = sequence.me, n = sequence.size();
  for (int mask = 1 << ceil_log2(n) >> 1; mask > 0; mask /= 2, ++builder.round) {
    if (v < 0) continue;
    if (v % (2 * mask) == 0 && v + mask < n)
      builder.send(sequence.at(v + mask), chunks(data, n, v + mask, std::min(v + 2 * mask, n)));
    if (v % (2 * mask) == mask) builder.receive(sequence.at(v - mask), chunks(data, n, v, std::min(v + mask, n)));
  }
}

}  // namespace esp::comm
