// Double binary tree (Sanders, Speck, Träff 2009). The first half of the buffer climbs tree A to its root and comes
// back down, the second half does so in tree B, in k segments each. A rank is interior in at most one of the trees
// (rank 0 may be in both for odd sizes), so no port carries more than 2S.
//
// One round moves at most four messages in and four out of a rank: two children and a parent in one tree, a parent in
// the other. With H the depth, a rank at depth D sends segment j up in round H - D + j and down in round H + D + j;
// that is 2H + k - 1 rounds.
#include <algorithm>
#include <cmath>

#include "esp/comm/algo/algorithms.h"
#include "esp/comm/algo/double_tree.h"
#include "esp/comm/algo/phases.h"

namespace esp::comm {
namespace {

// Parent in tree A, whose root is 0: an in-order binary tree over 1 … N-1 hung below 0.
int parent_a(int r, int n) {
  if (r == 0) return -1;
  int low = r & -r, up = (r - low) | 2 * low;
  return up < n ? up : r - low;
}

}  // namespace

int double_tree_parent(int tree, int rank, int size) {
  if (tree == 0) return parent_a(rank, size);
  if (size % 2 == 0) {  // tree B mirrors A
    int up = parent_a(size - 1 - rank, size);
    return up < 0 ? -1 : size - 1 - up;
  }
  int up = parent_a(mod(rank - 1, size), size);  // or shifts it by one
  return up < 0 ? -1 : (up + 1) % size;
}

int double_tree_segments(const Problem& problem) {
  if (problem.segments > 0) return problem.segments;
  // About 16 K elements a segment: long enough to hide a message's cost, short enough to fill the tree.
  return static_cast<int>(std::clamp<size_t>(problem.count / 2 / 16384, 1, 64));
}

Schedule all_reduce_double_tree(const Problem& problem) {
  Draft draft;
  int n = problem.size, me = problem.rank, k = double_tree_segments(problem), depth_of_all = ceil_log2(n);
  Region all = output(0, problem.count);
  draft.copy(all, input(0, problem.count));
  for (int tree = 0; tree < 2 && n > 1; ++tree) {
    Region half = chunk(all, 2, tree);
    int parent = double_tree_parent(tree, me, n), depth = 0;
    for (int up = parent; up >= 0; up = double_tree_parent(tree, up, n)) ++depth;
    std::vector<int> children;
    for (int r = 0; r < n; ++r)
      if (double_tree_parent(tree, r, n) == me) children.push_back(r);
    for (int j = 0; j < k; ++j) {
      Region segment = chunk(half, k, j);
      draft.round = depth_of_all - depth + j;
      if (parent >= 0) draft.send(parent, segment);
      draft.round = depth_of_all - depth - 1 + j;
      for (int child : children) draft.receive_reduce(child, segment);
      draft.round = depth_of_all + depth - 1 + j;
      if (parent >= 0) draft.receive(parent, segment);
      draft.round = depth_of_all + depth + j;
      for (int child : children) draft.send(child, segment);
    }
  }
  draft.round = n > 1 ? 2 * depth_of_all + k - 1 : 0;
  return draft.finish();
}

}  // namespace esp::comm
