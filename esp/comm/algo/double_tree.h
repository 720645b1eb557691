// The two trees of the double binary tree, and the slots that let their messages share ports without waiting. Tree 0
// hangs below rank 0. Tree 1 is its mirror image for even sizes and is shifted by one rank for odd sizes.
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
  // Position within a round of the message between a rank and its parent. No two messages into or out of one rank in
  // one round share a slot: up-messages take 0 and 1, down-messages take 2 and 3, and for odd sizes the edge to rank 0
  // in tree 0 takes 4.
  int slot(int tree, int child, bool up) const;

 private:
  void colour();
  int size_;
  std::vector<int> parents_[2];
  std::vector<std::vector<int>> children_[2];
  std::vector<int> colours_[2];  // of the edge from a rank to its parent
};

// Number of segments per half: spec.segments, or about 16 K elements per segment, 1 to 64 segments.
int double_tree_segments(const CollectiveSpec& spec);

}  // namespace esp::comm
