#include "esp/sync/gossip/graph_file.h"

#include <gtest/gtest.h>

#include <fstream>

#include "esp/base/error.h"
#include "esp/obs/temporary_folder.h"

namespace esp::sync {
namespace {

std::string refused(std::string_view text) {
  try {
    check_topology(parse_graph(text, "g.txt"));
  } catch (const UsageError& error) {
    return error.what();
  }
  return "nothing was refused";
}

TEST(GraphFile, AssignsMetropolisHastingsWeights) {
  const GossipTopology graph = parse_graph("# a line of four\nnodes 4\n0 1\n2 1  # in any order\n\n2 3\r\n", "g.txt");
  const std::pair<int, int> edges[] = {{0, 1}, {1, 2}, {2, 3}};
  EXPECT_EQ(graph.turns.front(), metropolis_hastings(4, edges));
  EXPECT_NO_THROW(check_topology(graph));
}

TEST(GraphFile, KeepsExplicitWeights) {
  const GossipTopology graph = parse_graph("nodes 3\n0 0 0.5\n0 2 0.5\n1 0 0.5\n1 1 0.5\n2 1 0.5\n2 2 0.5", "g.txt");
  const MixingMatrix expected = {{{0, 0.5}, {2, 0.5}}, {{0, 0.5}, {1, 0.5}}, {{1, 0.5}, {2, 0.5}}};
  EXPECT_EQ(graph.turns.front(), expected);
  EXPECT_NO_THROW(check_topology(graph));
}

TEST(GraphFile, ReportsTheLineOfAnError) {
  const std::pair<const char*, const char*> cases[] = {
      {"", "got no line `nodes N`; expected it before the edges"},
      {"0 1\n", "line 1: expected a line `nodes N` before the edges"},
      {"nodes 3\n\n0 3\n", "line 3: node: got 3; expected 0 to 2"},
      {"nodes 3\n0 1\n1 0\n", "line 3: duplicate edge 0 1"},
      {"nodes 3\n1 1\n", "line 2: edge from 1 to itself"},
      {"nodes 3\n0 1\n1 2 0.5\n", "line 3: got an edge with weight; expected weights on all lines or on none"},
      {"nodes 3\n0 x\n", "line 2: got \"x\"; expected a node number"},
      {"nodes 3\n0 1 2 3\n", "line 2: expected an edge `i j`"},
      {"nodes 0\n", "line 1: nodes: got 0; expected 1 to 4096"},
      {"nodes 3\nnodes 3\n", "line 2: duplicate line `nodes N`"},
      {"nodes 2\n0 0 nan\n0 1 0.5\n1 0 0.5\n1 1 0.5\n", "weight of edge 0 0: got nan; expected 0 to 1"},
      {"nodes 4\n0 1\n2 3\n", "node 2 is not reachable from node 0"},
      {"nodes 2\n0 0 0.5\n0 1 0.5\n1 1 1\n", "got the sum 0.5; expected 1"},
  };
  for (const auto& [text, expected] : cases)
    EXPECT_NE(refused(text).find(expected), std::string::npos) << refused(text);
}

TEST(GraphFile, TopologyReadsAFileByPathAndRejectsAWrongNodeCount) {
  const obs::TemporaryFolder folder;
  const std::string path = folder / "square.txt";
  std::ofstream(path) << "nodes 4\n0 1\n1 2\n2 3\n3 0\n";
  const MixingMatrix read = make_topology(path, 4).at(0), ring = make_topology("ring", 4).at(0);
  for (size_t i = 0; i < 4; ++i)
    for (size_t k = 0; k < 3; ++k) {
      EXPECT_EQ(read[i][k].from, ring[i][k].from);
      // not bit-equal: a replica's own weight is 1 minus the other weights
      EXPECT_NEAR(read[i][k].weight, ring[i][k].weight, 1e-15);
    }
  try {
    make_topology(path, 5);
    FAIL() << "accepted a graph of 4 nodes for 5 replicas";
  } catch (const UsageError& error) {
    EXPECT_NE(std::string(error.what()).find("the graph has 4 nodes; expected 5"), std::string::npos) << error.what();
  }
}

}  // namespace
}  // namespace esp::sync
