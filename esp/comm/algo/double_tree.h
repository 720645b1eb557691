// The two trees of the double binary tree, and the slots that order the messages of a round at shared ports.
#pragma once

#include <vector>

#include "esp/comm/schedule.h"

namespace esp::comm {

// The two trees of the double binary tree. Rank 0 is the root of tree 0. Tree 1 is the mirror image of tree 0 for even
// sizes, and tree 0 shifted by one rank for odd sizes.
class DoubleTree {
 public:
  explicit DoubleTree(int size);

  // -1: the rank is the root
  int parent(int tree, int rank) const { return parents_[tree][static_cast<size_t>(rank)]; }
  const std::vector<int>& children(int tree, int rank) const { return children_[tree][static_cast<size_t>(rank)]; }
  int depth(int tree, int rank) const;
  // Slot of the message between `child` and its parent: its position in the order of one round's messages. No two
  // messages into or out of one rank in one round share a slot. Up-messages take slots 0 and 1, down-messages 2 and 3;
  // for odd sizes the edge to rank 0 in tree 0 takes 4.
  int slot(int tree, int child, bool up) const;

 private:
  void colour();
  int size_;
  std::vector<int> parents_[2];
  std::vector<std::vector<int>> children_[2];
  std::vector<int> colours_[2];  // colour of the edge from a rank to its parent
};

// Number of segments per half: spec.segments, or about 16 K elements per segment, 1 to 64 segments.
int double_tree_segments(const CollectiveSpec& spec);

}  // namespace esp::comm
