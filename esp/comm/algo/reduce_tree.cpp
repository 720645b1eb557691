// Binomial reduce, the mirror image of the binomial broadcast. A rank adds its children in the order of their distance.
#include "esp/comm/algo/algorithms.h"
#include "esp/comm/algo/phases.h"

namespace esp::comm {

Schedule reduce_tree(const Problem& problem) {
  Draft draft;
  Line line = everyone_from(problem, problem.root);
  Region in = input(0, problem.count), sum = output(0, problem.count);
  // Only the root has an output; a rank between collects in scratch, a leaf just sends.
  if (line.me != 0) sum = is_tree_leaf(line) ? in : draft.scratch(problem.count);
  if (sum.buffer != Buffer::input) draft.copy(sum, in);
  tree_reduce(draft, line, sum);
  return draft.finish();
}

}  // namespace esp::comm
