// Double binary tree (Sanders, Speck, Träff 2009). The first half of the buffer climbs tree A to its root and comes
// back down, the second half does so in tree B, in k segments each. A rank is interior in at most one of the trees
// (rank 0 may be in both for odd sizes), so no port carries more than 2S.
//
// With H the depth, a rank at depth D sends segment j up in round H - D + j and down in round H + D + j; that is
// 2H + k - 1 rounds. In one round a rank moves at most four messages each way: two children and a parent in one tree, a
// parent in the other. Their order in the round is by slot (double_tree.h), the same at both ends, so none waits for a
// port that another message of a later slot holds.
#include <algorithm>

#include "esp/comm/algo/algorithms.h"
#include "esp/comm/algo/double_tree.h"
#include "esp/comm/algo/phases.h"

namespace esp::comm {
namespace {

struct Planned {
  int round, slot;
  Act act;
  int peer;
  BufferRegion region;
};

}  // namespace

Schedule all_reduce_double_tree(const CollectiveSpec& spec) {
  ScheduleBuilder builder;
  int n = spec.size, me = spec.rank, k = double_tree_segments(spec), height = ceil_log2(n);
  BufferRegion all = output(0, spec.count);
  builder.copy(all, input(0, spec.count));
  std::vector<Planned> plan;
  DoubleTree trees(n);
  for (int tree = 0; tree < 2 && n > 1; ++tree) {
    int parent = trees.parent(tree, me), depth = trees.depth(tree, me);
    for (int j = 0; j < k; ++j) {
      BufferRegion segment = chunk(chunk(all, 2, tree), k, j);
      int up = height - depth + j, down = height + depth + j;
      if (parent >= 0) {
        plan.push_back({up, trees.slot(tree, me, true), Act::send, parent, segment});
        plan.push_back({down - 1, trees.slot(tree, me, false), Act::receive, parent, segment});
      }
      for (int child : trees.children(tree, me)) {
        plan.push_back({up - 1, trees.slot(tree, child, true), Act::receive_reduce, child, segment});
        plan.push_back({down, trees.slot(tree, child, false), Act::send, child, segment});
      }
    }
  }
  std::stable_sort(plan.begin(), plan.end(), [](const Planned& a, const Planned& b) {
    return a.round != b.round ? a.round < b.round : a.slot < b.slot;
  });
  for (const Planned& next : plan) {
    builder.round = next.round;
    if (next.act == Act::send) builder.send(next.peer, next.region);
    if (next.act == Act::receive) builder.receive(next.peer, next.region);
    if (next.act == Act::receive_reduce) builder.receive_reduce(next.peer, next.region);
  }
  builder.round = n > 1 ? 2 * height + k - 1 : 0;
  return builder.finish();
}

}  // namespace esp::comm
