// The two trees of the double binary tree, and the slots that let their messages share ports without waiting.
#pragma once

#include <vector>

#include "esp/comm/schedule.h"

namespace esp::comm {

// Tree 0 hangs below rank 0; tree 1 is its mirror image for even sizes and is shifted by one rank for odd ones.
class DoubleTree {
 public:
  explicit DoubleTree(int size);

  int parent(int tree, int rank) const { return parents_[tree][static_cast<size_t>(rank)]; }  // -1 for the root
  const std::vector<int>& children(int tree, int rank) const { return children_[tree][static_cast<size_t>(rank)]; }
  int depth(int tree, int rank) const;
  // When within a round the message between a rank and its parent goes. No two messages in or out of a rank in one
  // round share a slot: ups take 0 and 1, downs 2 and 3, and for odd sizes the edge to rank 0 in tree 0 takes 4.
  int slot(int tree, int child, bool up) const;

 private:
  void colour();
  int size_;
  std::vector<int> parents_[2];
  std::vector<std::vector<int>> children_[2];
  std::vector<int> colours_[2];  // of the edge from a rank to its parent
};

// How many segments each half is cut in: problem.segments, or about 16 K elements each, 1 to 64.
int double_tree_segments(const Problem& problem);

}  // namespace esp::comm
