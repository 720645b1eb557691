// Double binary tree (Sanders, Speck, Träff 2009). The first half of the buffer is reduced along tree A to its root and
// broadcast back down; the second half uses tree B. Each half is split into k segments. A rank is an interior node of
// at most one tree (for odd sizes rank 0 may be interior in both), so no port carries more than 2S.
//
// With H the tree depth, a rank at depth D sends segment j up in round H - D + j and down in round H + D + j. That
// makes 2H + k - 1 rounds. In one round a rank sends or receives at most four messages: with its two children and its
// parent in one tree, and with its parent in the other tree. Sender and receiver order these messages by slot
// (double_tree.h), so no message waits for a port that is occupied by a message with a later slot.
#include <algorithm>

#include "esp/comm/algo/algorithms.h"
#include "esp/comm/algo/double_tree.h"
#include "esp/comm/algo/phases.h"

namespace esp::comm {
namespace {

struct PlannedMessage {
  int round, slot;
  ActionType type;
  int peer;
  BufferRegion region;
};

}  // namespace

Schedule all_reduce_double_tree(const CollectiveSpec& spec) {
  ScheduleBuilder builder;
  int n = spec.size, me = spec.rank, k = double_tree_segments(spec), height = ceil_log2(n);
  BufferRegion all = output(0, spec.count);
  builder.copy(all, input(0, spec.count));
  std::vector<PlannedMessage> plan;
  DoubleTree trees(n);
  for (int tree = 0; tree < 2 && n > 1; ++tree) {
    int parent = trees.parent(tree, me), depth = trees.depth(tree, me);
    for (int j = 0; j < k; ++j) {
      BufferRegion segment = chunk(chunk(all, 2, tree), k, j);
      int up = height - depth + j, down = height + depth + j;
      if (parent >= 0) {
        plan.push_back({up, trees.slot(tree, me, true), ActionType::send, parent, segment});
        plan.push_back({down - 1, trees.slot(tree, me, false), ActionType::receive, parent, segment});
      }
      for (int child : trees.children(tree, me)) {
        plan.push_back({up - 1, trees.slot(tree, child, true), ActionType::receive_reduce, child, segment});
        plan.push_back({down, trees.slot(tree, child, false), ActionType::send, child, segment});
      }
    }
  }
  std::stable_sort(plan.begin(), plan.end(), [](const PlannedMessage& a, const PlannedMessage& b) {
    return a.round != b.round ? a.round < b.round : a.slot < b.slot;
  });
  for (const PlannedMessage& next : plan) {
    builder.round = next.round;
    if (next.type == ActionType::send) builder.send(next.peer, next.region);
    if (next.type == ActionType::receive) builder.receive(next.peer, next.region);
    if (next.type == ActionType::receive_reduce) builder.receive_reduce(next.peer, next.region);
  }
  builder.round = n > 1 ? 2 * height + k - 1 : 0;
  return builder.finish();
}

}  // namespace esp::comm
