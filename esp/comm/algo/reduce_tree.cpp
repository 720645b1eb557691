// Binomial reduce, the mirror image of the binomial broadcast. A rank adds the values of its children in order of
// distance.
#include "esp/comm/algo/algorithms.h"
#include "esp/comm/algo/phases.h"

namespace esp::comm {

Schedule reduce_tree(const CollectiveSpec& spec) {
  ScheduleBuilder builder;
  RankSequence sequence = ranks_from(spec, spec.root);
  BufferRegion in = input(0, spec.count), sum = output(0, spec.count);
  // Only the root has an output. An interior rank accumulates in scratch; a leaf sends its input.
  if (sequence.me != 0) sum = is_tree_leaf(sequence) ? in : builder.scratch(spec.count);
  if (sum.buffer != Buffer::input) builder.copy(sum, in);
  tree_reduce(builder, sequence, sum);
  return builder.finish();
}

}  // namespace esp::comm
