// espalier lab gossip: decentralised SGD by real ranks, graph by graph, compared with parallel SGD: bytes, mixing, and
// the bias with heterogeneous nodes.
#include <algorithm>
#include <cmath>

#include <fmt/format.h>
#include <nlohmann/json.hpp>

#include "apps/espalier/command.h"
#include "apps/espalier/lab_divergent.h"
#include "apps/espalier/lab_output.h"
#include "esp/sync/gossip/gossip_topology.h"

namespace esp::app {
namespace {

struct Graph {
  sync::GossipTopology topology;
  double gap = 0;
  size_t most_told = 0;  // largest number of listeners of a rank in one step
};

Graph graph_of(const std::string& name, int size) {
  Graph graph{sync::make_topology(name, size), 0, 0};
  graph.gap = sync::spectral_gap(graph.topology);
  for (const sync::MixingMatrix& mixing : graph.topology.turns)
    for (int i = 0; i < size; ++i) graph.most_told = std::max(graph.most_told, sync::listeners(mixing, i).size());
  return graph;
}

CopiesCase case_of(const DivergentLab& o, const std::string& topology) {
  CopiesCase it{topology, {}, 0};
  it.sync.method = "gossip";
  it.sync.topology = topology;
  it.formula_bytes =
      static_cast<double>(graph_of(topology, o.nproc).most_told) * 8.0 * static_cast<double>(o.dim * o.steps);
  return it;
}

std::vector<CopiesCase> cases_of(const DivergentLab& o, const std::string& file) {
  std::vector<CopiesCase> all;
  CopiesCase psgd{"parallel SGD", {}, -1};
  psgd.sync.method = "allreduce";
  all.push_back(psgd);
  for (const sync::TopologyRow& row : sync::topologies()) all.push_back(case_of(o, std::string(row.name)));
  if (!file.empty()) all.push_back(case_of(o, file));
  CopiesCase pga = case_of(o, "ring");
  pga.name = "ring, all every 8";
  pga.sync.period = 8;
  pga.formula_bytes = -1;
  all.push_back(pga);
  CopiesCase tracking = case_of(o, "ring");
  tracking.name = "ring, tracking";
  tracking.sync.tracking = true;
  tracking.formula_bytes *= static_cast<double>(2 * o.steps - 1) / static_cast<double>(o.steps);  // y starts as g
  all.push_back(tracking);
  return all;
}

std::string gaps(const DivergentLab& o, const std::string& file) {
  std::vector<Cells> rows;
  const auto add = [&](const std::string& name) {
    const Graph graph = graph_of(name, o.nproc);
    rows.push_back({name, fmt::format("{}", graph.most_told), fmt::format("{:.6f}", graph.gap),
                    graph.topology.turns.size() > 1 ? fmt::format("over {} steps", graph.topology.turns.size()) : ""});
  };
  for (const sync::TopologyRow& row : sync::topologies()) add(std::string(row.name));
  if (!file.empty()) add(file);
  return text_table({"graph", "listeners per rank", "1 − ρ(W)", ""}, rows);
}

// Spectral gaps with a closed form: the ring's by its largest cosine, exponential graphs' by their degree.
Findings findings_of(const DivergentLab& o, const std::vector<DivergentRun>& runs) {
  Findings findings;
  for (const DivergentRun& run : runs)
    if (run.it.formula_bytes >= 0)
      findings.exact(fmt::format("{}: bytes of the rank that sends most", run.it.name), "O(d_max)",
                     run.it.formula_bytes, static_cast<double>(run.bytes), "B");
  const double n = o.nproc;
  if (o.nproc > 2)
    findings.within("ring: 1 − ρ", "", 2.0 / 3 * (1 - std::cos(2 * 3.141592653589793 / n)),
                    graph_of("ring", o.nproc).gap, 1e-9);
  if (o.nproc > 2 && (o.nproc & (o.nproc - 1)) == 0) {
    findings.within("exponential: 1 − ρ", "", 2 / (1 + std::log2(n)), graph_of("exponential", o.nproc).gap, 1e-9);
    findings.within("one-peer exponential: 1 − ρ after log₂ n steps", "", 1, graph_of("one_peer", o.nproc).gap, 1e-9);
  }
  for (const DivergentRun& run : runs)
    if (run.it.name == "parallel SGD" || run.it.name == "exponential")
      findings
          .show(fmt::format("{}: accuracy and hours in the lecture, final excess loss here", run.it.name),
                run.it.name == "exponential" ? "76.27 %, 1.5 h on 32 nodes" : "76.25 %, 2.2 h on 32 nodes", "",
                fmt::format("{:.1e}", run.excess))
          .note = "another task: an image classifier trained on 256 GPUs; only the order can be compared";
  // A partial average sends S once where a ring sends 2(n−1)/n of it; the lecture's time of the ring gives the rate.
  findings
      .show("a partial average where a ring all-reduce takes 278 ms, ResNet-50 on 256 GPUs", "150 ms",
            fmt::format("{:.0f} ms", 278 * 256 / (2.0 * 255)), "")
      .note = "modelled by bytes alone: n/(2(n−1)) of the ring's; the lecture's 150 ms includes latency and launches";
  return findings;
}

struct GossipLab {
  DivergentLab copies;
  std::string graph;
};

int run_lab_gossip(const GossipLab& o) {
  check(o.copies);
  const auto problem = problem_of(o.copies);
  std::vector<DivergentRun> runs;
  std::vector<Cells> rows;
  for (const CopiesCase& it : cases_of(o.copies, o.graph)) {
    runs.push_back(run_copies(o.copies, *problem, it));
    rows.push_back(row_of(o.copies, runs.back()));
  }
  const std::string text = fmt::format(
      "{}\n\n{}\n{}Bytes are those of the rank that sends most, from its communicator. With a constant step, "
      "heterogeneous nodes cause a bias\nthat shrinks with the gap; gradient tracking removes it, for twice the bytes. "
      "f(x̄) is the loss of the replicas' mean.\n",
      words_of(o.copies, *problem), gaps(o.copies, o.graph), text_table(head_of_rows(), rows));
  return finish_lab({o.copies.json, o.copies.out}, "gossip", text, report_of(o.copies, *problem, runs),
                    draw_svg(fmt::format("Decentralised SGD, {} ranks", o.copies.nproc), "steps",
                             "squared error per coordinate", error_series(runs), Axes::plain),
                    findings_of(o.copies, runs));
}

}  // namespace

void define_lab_gossip(const Arguments& app, Chosen& chosen) {
  auto o = keep<GossipLab>(app, chosen, run_lab_gossip);
  define_copies_options(app, o->copies);
  app.add_option("--graph", o->graph, "a graph file to run as well").type_name("FILE");
}

}  // namespace esp::app
