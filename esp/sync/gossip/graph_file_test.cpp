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

TEST(GraphFile, EdgesGetMetropolisHastingsWeights) {
  const Topology graph = parse_graph("# a line of four\nnodes 4\n0 1\n2 1  # in any order\n\n2 3\r\n", "g.txt");
  const std::pair<int, int> edges[] = {{0, 1}, {1, 2}, {2, 3}};
  EXPECT_EQ(graph.turns.front(), metropolis_hastings(4, edges));
  EXPECT_NO_THROW(check_topology(graph));
}

TEST(GraphFile, WeightsAreTakenAsGiven) {
  const Topology graph = parse_graph("nodes 3\n0 0 0.5\n0 2 0.5\n1 0 0.5\n1 1 0.5\n2 1 0.5\n2 2 0.5", "g.txt");
  const Mixing wanted = {{{0, 0.5}, {2, 0.5}}, {{0, 0.5}, {1, 0.5}}, {{1, 0.5}, {2, 0.5}}};
  EXPECT_EQ(graph.turns.front(), wanted);
  EXPECT_NO_THROW(check_topology(graph));
}

TEST(GraphFile, SaysWhereItIsWrong) {
  const std::pair<const char*, const char*> cases[] = {
      {"", "ends without a line `nodes N`"},
      {"0 1\n", "line 1: a line `nodes N` is wanted before the edges"},
      {"nodes 3\n\n0 3\n", "line 3: node 3 is not one of 0 to 2"},
      {"nodes 3\n0 1\n1 0\n", "line 3: 0 and 1 have been joined before"},
      {"nodes 3\n1 1\n", "line 2: an edge from 1 to itself"},
      {"nodes 3\n0 1\n1 2 0.5\n", "line 3: edges have weights in all lines or in none"},
      {"nodes 3\n0 x\n", "line 2: \"x\" is no number of a node"},
      {"nodes 3\n0 1 2 3\n", "line 2: an edge `i j` is wanted"},
      {"nodes 0\n", "line 1: 0 nodes: 1 to 4096 are wanted"},
      {"nodes 3\nnodes 3\n", "line 2: the number of nodes has been said before"},
      {"nodes 2\n0 0 nan\n0 1 0.5\n1 0 0.5\n1 1 0.5\n", "weights are within 0 and 1"},
      {"nodes 4\n0 1\n2 3\n", "no way leads from node 0 to node 2"},
      {"nodes 2\n0 0 0.5\n0 1 0.5\n1 1 1\n", "not 1"},
  };
  for (const auto& [text, wanted] : cases) EXPECT_NE(refused(text).find(wanted), std::string::npos) << refused(text);
}

TEST(GraphFile, IsReadByItsPathAndHeldToTheNumberOfCopies) {
  const obs::TemporaryFolder folder;
  const std::string path = folder / "square.txt";
  std::ofstream(path) << "nodes 4\n0 1\n1 2\n2 3\n3 0\n";
  const Mixing read = make_topology(path, 4).at(0), ring = make_topology("ring", 4).at(0);
  for (size_t i = 0; i < 4; ++i)
    for (size_t k = 0; k < 3; ++k) {
      EXPECT_EQ(read[i][k].from, ring[i][k].from);
      EXPECT_NEAR(read[i][k].weight, ring[i][k].weight, 1e-15);  // its own share is what others leave
    }
  try {
    make_topology(path, 5);
    FAIL() << "four nodes for five copies";
  } catch (const UsageError& error) {
    EXPECT_NE(std::string(error.what()).find("the graph has 4 nodes, and 5 copies"), std::string::npos) << error.what();
  }
}

}  // namespace
}  // namespace esp::sync
