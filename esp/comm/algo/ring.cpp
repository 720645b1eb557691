#include "esp/comm/algo/phases.h"

namespace esp::comm {

void ring_reduce_scatter(Draft& draft, const Line& line, const Region& data, RingStart start) {
  int n = line.size(), first = line.me + (start == RingStart::own ? -1 : 0);
  for (int i = 0; i < n - 1; ++i, ++draft.round) {
    if (line.me < 0) continue;
    draft.send(line.at(line.me + 1), chunk(data, n, first - i));
    draft.receive_reduce(line.at(line.me - 1), chunk(data, n, first - 1 - i));
  }
}

void ring_all_gather(Draft& draft, const Line& line, const Region& data, RingStart start) {
  int n = line.size(), first = line.me + (start == RingStart::own ? 0 : 1);
  for (int i = 0; i < n - 1; ++i, ++draft.round) {
    if (line.me < 0) continue;
    draft.send(line.at(line.me + 1), chunk(data, n, first - i));
    draft.receive(line.at(line.me - 1), chunk(data, n, first - i - 1));
  }
}

void pairwise_all_gather(Draft& draft, const Line& line, const Region& data) {
  int n = line.size();
  for (int k = 1; k < n; ++k, ++draft.round) {
    if (line.me < 0) continue;
    draft.send(line.at(line.me + k), chunk(data, n, line.me));
    draft.receive(line.at(line.me - k), chunk(data, n, line.me - k));
  }
}

}  // namespace esp::comm
