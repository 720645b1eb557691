#include "esp/comm/algo/double_tree.h"

#include <algorithm>
#include <utility>

#include "esp/comm/algo/schedule_builder.h"

namespace esp::comm {
namespace {

// Parent of rank r in tree 0. Ranks 1 … N-1 form an in-order binary tree; rank 0 is the parent of its root.
int parent_below_zero(int r, int n) {
  if (r == 0) return -1;
  int low = r & -r, up = (r - low) | 2 * low;
  return up < n ? up : r - low;
}

}  // namespace

DoubleTree::DoubleTree(int size) : size_(size) {
  auto n = static_cast<size_t>(size);
  // Tree 1 is tree 0 with the ranks renamed: rank r has the place in tree 1 that image(r) has in tree 0.
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

// Gives every edge of the two trees colour 0 or 1. The edges from one rank to its two parents (one per tree) get
// different colours, and so do the edges to its two children. Each edge thus has at most two conflicting edges, and all
// cycles of conflicts have even length, so alternating the colours along a cycle works.
void DoubleTree::colour() {
  for (int tree = 0; tree < 2; ++tree)
    for (int r = 0; r < size_; ++r) {
      std::vector<std::pair<int, int>> walk;  // coloured edges whose conflicting edges are not coloured yet
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
  // About 16 K elements per segment: long enough to hide the latency of a message, short enough to fill the tree.
  return static_cast<int>(std::clamp<size_t>(spec.count / 2 / 16384, 1, 64));
}

}  // namespace esp::comm
