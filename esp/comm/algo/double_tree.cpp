#include "esp/comm/algo/double_tree.h"

#include <algorithm>
#include <utility>

#include "esp/comm/algo/schedule_builder.h"

namespace esp::comm {
namespace {

// Parent in tree 0: an in-order binary tree over 1 … N-1 below root 0.
int parent_below_zero(int r, int n) {
  if (r == 0) return -1;
  int low = r & -r, up = (r - low) | 2 * low;
  return up < n ? up : r - low;
}

}  // namespace

DoubleTree::DoubleTree(int size) : size_(size) {
  auto n = static_cast<size_t>(size);
  // Rank r has the position in tree 1 that image(r) has in tree 0.
  auto image = [&](int r) { return size % 2 == 0 ? size - 1 - r : mod(r - 1, size); };
  auto back = [&](int r) { return size % 2 == 0 ? size - 1 - r : mod(r + 1, size); };
  for (int tree = 0; tree < 2; ++tree) {
    children_[tree].resize(n);
    for (int r = 0; r < size; ++r) {
      int up = parent_below_zero(tree == 0 ? r : image(r), size);
      parents_[tree].push_back(up < 0 || tree == 0 ? up : back(up));
      if (up >= 0) children_[tree][static_cast<size_t>(parents_[tree].back())].push_back(r);
    }
    colours_[tree].assign(n, -1);
  }
  colour();
}

int DoubleTree::depth(int tree, int rank) const {
  int depth = 0;
  for (int up = parent(tree, rank); up >= 0; up = parent(tree, up)) ++depth;
  return depth;
}

int DoubleTree::slot(int tree, int child, bool up) const {
  if (size_ % 2 == 1 && tree == 0 && parent(0, child) == 0) return 4;
  return colours_[tree][static_cast<size_t>(child)] + (up ? 0 : 2);
}

// Two-colours the edges so that the two edges from a rank to its parents differ, and so do the two to its children.
// Each edge has at most two such neighbours and cycles of them are even, so alternating colours works.
void DoubleTree::colour() {
  for (int tree = 0; tree < 2; ++tree)
    for (int r = 0; r < size_; ++r) {
      std::vector<std::pair<int, int>> walk;  // edges coloured, neighbours not yet seen to
      if (parent(tree, r) >= 0 && colours_[tree][static_cast<size_t>(r)] < 0) {
        colours_[tree][static_cast<size_t>(r)] = 0;
        walk.push_back({tree, r});
      }
      while (!walk.empty()) {
        auto [t, child] = walk.back();
        walk.pop_back();
        int other = 1 - colours_[t][static_cast<size_t>(child)];
        auto visit = [&](int next_tree, int next) {
          int& colour = colours_[next_tree][static_cast<size_t>(next)];
          if (parent(next_tree, next) < 0 || colour >= 0) return;
          colour = other;
          walk.push_back({next_tree, next});
        };
        visit(1 - t, child);
        for (int sibling : children(t, parent(t, child)))
          if (sibling != child) visit(t, sibling);
      }
    }
}

int double_tree_segments(const CollectiveSpec& spec) {
  if (spec.segments > 0) return spec.segments;
  // Long enough to hide a message's cost, short enough to fill the tree.
  return static_cast<int>(std::clamp<size_t>(spec.count / 2 / 16384, 1, 64));
}

}  // namespace esp::comm
