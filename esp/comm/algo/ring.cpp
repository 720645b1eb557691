#include "esp/comm/algo/phases.h"

namespace esp::comm {

void ring_reduce_scatter(ScheduleBuilder& builder, const RankSequence& sequence, const BufferRegion& data,
                         RingStart start) {
  int n = sequence.size(), first = sequence.me + (start == RingStart::own ? -1 : 0);
  for (int i = 0; i < n - 1; ++i, ++builder.round) {
    if (sequence.me < 0) continue;
    builder.send(sequence.at(sequence.me + 1), chunk(data, n, first - i));
    builder.receive_reduce(sequence.at(sequence.me - 1), chunk(data, n, first - 1 - i));
  }
}

void ring_all_gather(ScheduleBuilder& builder, const RankSequence& sequence, const BufferRegion& data,
                     RingStart start) {
  int n = sequence.size(), first = sequence.me + (start == RingStart::own ? 0 : 1);
  for (int i = 0; i < n - 1; ++i, ++builder.round) {
    if (sequence.me < 0) continue;
    builder.send(sequence.at(sequence.me + 1), chunk(data, n, first - i));
    builder.receive(sequence.at(sequence.me - 1), chunk(data, n, first - i - 1));
  }
}

void pairwise_all_gather(ScheduleBuilder& builder, const RankSequence& sequence, const BufferRegion& data) {
  int n = sequence.size();
  for (int k = 1; k < n; ++k, ++builder.round) {
    if (sequence.me < 0) continue;
    builder.send(sequence.at(sequence.me + k), chunk(data, n, sequence.me));
    builder.receive(sequence.at(sequence.me - k), chunk(data, n, sequence.me - k));
  }
}

}  // namespace esp::comm
