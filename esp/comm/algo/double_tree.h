// The two trees of the double binary tree, for its schedule, its cost and its tests.
#pragma once

#include "esp/comm/schedule.h"

namespace esp::comm {

// Parent of a rank in tree 0 or 1; -1 for the root.
int double_tree_parent(int tree, int rank, int size);
// How many segments each half is cut in.
int double_tree_segments(const Problem& problem);

}  // namespace esp::comm
