// Hierarchical: first within the node, to the neighbour with the destination's local index, blocks for all nodes in one
// message; then across nodes between equal local indices. The grid is ranks per node × nodes. M-fold fewer messages
// cross nodes than in the pairwise exchange, at the price of moving most blocks twice.
#include "esp/comm/algo/algorithms.h"
#include "esp/comm/algo/phases.h"

namespace esp::comm {

Schedule all_to_all_hierarchical(const Problem& problem) {
  Draft draft;
  Shape shape = shape_of(problem, 2);
  int g_count = shape.dims[0], m_count = shape.dims[1], n = problem.size;
  Line node = along(shape, problem.rank, 0), across = along(shape, problem.rank, 1);
  Region in = input(0, problem.count), out = output(0, problem.count);
  size_t block = problem.count / static_cast<size_t>(n), row = block * static_cast<size_t>(m_count);
  // held[g] has, by node m, the block that local rank g of this node sends to (my index, m).
  Region held = draft.scratch(problem.count);
  auto rank_of = [&](int g, int m) { return g + g_count * m; };
  auto pack = [&](Region into, int g) {
    for (int m = 0; m < m_count; ++m) draft.copy(chunk(into, m_count, m), chunk(in, n, rank_of(g, m)));
  };
  pack(chunk(held, g_count, node.me), node.me);
  for (int k = 1; k < g_count; ++k, ++draft.round) {
    Region packed = draft.scratch(row);
    pack(packed, mod(node.me + k, g_count));
    draft.send(node.at(node.me + k), packed);
    draft.receive(node.at(node.me - k), chunk(held, g_count, node.me - k));
  }
  auto of_node = [&](int g, int m) { return chunk(chunk(held, g_count, g), m_count, m); };
  for (int g = 0; g < g_count; ++g) draft.copy(chunk(out, n, rank_of(g, across.me)), of_node(g, across.me));
  for (int k = 1; k < m_count; ++k, ++draft.round) {
    Region packed = draft.scratch(block * static_cast<size_t>(g_count));
    for (int g = 0; g < g_count; ++g) draft.copy(chunk(packed, g_count, g), of_node(g, mod(across.me + k, m_count)));
    draft.send(across.at(across.me + k), packed);
    // A node's ranks are neighbours in the output, so what arrives lies as it must.
    int from = mod(across.me - k, m_count);
    draft.receive(across.at(from), chunks(out, n, rank_of(0, from), rank_of(0, from) + g_count));
  }
  return draft.finish();
}

}  // namespace esp::comm
