// Binomial trees over a line whose position 0 is the root. With mask = 1, 2, 4, … a position v that is a multiple of
// 2·mask has the child v + mask; broadcast goes through the masks downwards, reduce upwards.
#include <algorithm>

#include "esp/comm/algo/phases.h"

namespace esp::comm {

bool is_tree_leaf(const Line& line) {
  return line.me % 2 == 1 || line.me + 1 >= line.size();
}

void tree_reduce(Draft& draft, const Line& line, const Region& sum) {
  int v = line.me, n = line.size();
  for (int mask = 1; mask < n; mask *= 2, ++draft.round) {
    if (v < 0) continue;
    if (v % (2 * mask) == mask) draft.send(line.at(v - mask), sum);
    if (v % (2 * mask) == 0 && v + mask < n) draft.receive_reduce(line.at(v + mask), sum);
  }
}

void tree_broadcast(Draft& draft, const Line& line, const Region& data) {
  int v = line.me, n = line.size();
  for (int mask = 1 << ceil_log2(n) >> 1; mask > 0; mask /= 2, ++draft.round) {
    if (v < 0) continue;
    if (v % (2 * mask) == 0 && v + mask < n) draft.send(line.at(v + mask), data);
    if (v % (2 * mask) == mask) draft.receive(line.at(v - mask), data);
  }
}

void tree_scatter(Draft& draft, const Line& line, const Region& data) {
  int v = line.me, n = line.size();
  for (int mask = 1 << ceil_log2(n) >> 1; mask > 0; mask /= 2, ++draft.round) {
    if (v < 0) continue;
    if (v % (2 * mask) == 0 && v + mask < n)
      draft.send(line.at(v + mask), chunks(data, n, v + mask, std::min(v + 2 * mask, n)));
    if (v % (2 * mask) == mask) draft.receive(line.at(v - mask), chunks(data, n, v, std::min(v + mask, n)));
  }
}

}  // namespace esp::comm
