// Hierarchical all-to-all in two phases; the grid is ranks per node × nodes. Phase 1, within each node: a rank sends to
// local rank g, in one message, its blocks for all ranks with local index g (one block per node). Phase 2, between
// nodes: ranks with equal local index exchange the collected blocks. Compared with the pairwise exchange, M times fewer
// messages cross nodes, but most blocks are sent twice.
#include "esp/comm/algo/algorithms.h"
#include "esp/comm/algo/phases.h"

namespace esp::comm {

Schedule all_to_all_hierarchical(const CollectiveSpec& spec) {
  ScheduleBuilder builder;
  RankGrid shape = grid_for(spec, 2);
  int g_count = shape.dims[0], m_count = shape.dims[1], n = spec.size;
  RankSequence node = ranks_along(shape, spec.rank, 0), across = ranks_along(shape, spec.rank, 1);
  BufferRegion in = input(0, spec.count), out = output(0, spec.count);
  size_t block = spec.count / static_cast<size_t>(n), row = block * static_cast<size_t>(m_count);
  // held[g]: the blocks that local rank g of this node has sent. Block m is for the rank of node m that has this rank's
  // local index.
  BufferRegion held = builder.scratch(spec.count);
  auto rank_of = [&](int g, int m) { return g + g_count * m; };
  auto pack = [&](BufferRegion into, int g) {
    for (int m = 0; m < m_count; ++m) builder.copy(chunk(into, m_count, m), chunk(in, n, rank_of(g, m)));
  };
  pack(chunk(held, g_count, node.me), node.me);
  for (int k = 1; k < g_count; ++k, ++builder.round) {
    BufferRegion packed = builder.scratch(row);
    pack(packed, mod(node.me + k, g_count));
    builder.send(node.at(node.me + k), packed);
    builder.receive(node.at(node.me - k), chunk(held, g_count, node.me - k));
  }
  auto of_node = [&](int g, int m) { return chunk(chunk(held, g_count, g), m_count, m); };
  for (int g = 0; g < g_count; ++g) builder.copy(chunk(out, n, rank_of(g, across.me)), of_node(g, across.me));
  for (int k = 1; k < m_count; ++k, ++builder.round) {
    BufferRegion packed = builder.scratch(block * static_cast<size_t>(g_count));
    for (int g = 0; g < g_count; ++g) builder.copy(chunk(packed, g_count, g), of_node(g, mod(across.me + k, m_count)));
    builder.send(across.at(across.me + k), packed);
    // The ranks of a node are adjacent in the output, so received blocks are already in order.
    int from = mod(across.me - k, m_count);
    builder.receive(across.at(from), chunks(out, n, rank_of(0, from), rank_of(0, from) + g_count));
  }
  return builder.finish();
}

}  // namespace esp::comm
