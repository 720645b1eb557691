// espalier lab gossip: decentralised SGD by real ranks on several graphs, compared with parallel SGD: bytes, mixing,
// and the bias if the nodes' data differ.
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
  size_t max_listeners = 0;  // maximum number of peers that a rank sends to in one step
};

Graph graph_of(const std::string& name, int size) {
  Graph graph{sync::make_topology(name, size), 0, 0};
  graph.gap = sync::spectral_gap(graph.topology);
  for (const sync::MixingMatrix& mixing : graph.topology.turns)
    for (int i = 0; i < size; ++i)
      graph.max_listeners = std::max(graph.max_listeners, sync::out_neighbours(mixing, i).size());
  return graph;
}

DivergentCase case_of(const DivergentLabOptions& o, const std::string& topology) {
  DivergentCase spec{topology, {}, 0};
  spec.sync.method = "gossip";
  spec.sync.topology = topology;
  spec.formula_bytes =
      static_cast<double>(graph_of(topology, o.nproc).max_listeners) * 8.0 * static_cast<double>(o.dim * o.steps);
  return spec;
}

std::vector<DivergentCase> cases_of(const DivergentLabOptions& o, const std::string& file) {
  std::vector<DivergentCase> all;
  DivergentCase psgd{"parallel SGD", {}, -1};
  psgd.sync.method = "allreduce";
  all.push_back(psgd);
  for (const sync::TopologyRow& row : sync::topologies()) all.push_back(case_of(o, std::string(row.name)));
  if (!file.empty()) all.push_back(case_of(o, file));
  DivergentCase pga = case_of(o, "ring");
  pga.name = "ring, all every 8";
  pga.sync.period = 8;
  pga.formula_bytes = -1;
  all.push_back(pga);
  DivergentCase tracking = case_of(o, "ring");
  tracking.name = "ring, tracking";
  tracking.sync.tracking = true;
  // gradient tracking also exchanges y, except in the first step, where y = g
  tracking.formula_bytes *= static_cast<double>(2 * o.steps - 1) / static_cast<double>(o.steps);
  all.push_back(tracking);
  return all;
}

std::string gap_table(const DivergentLabOptions& o, const std::string& file) {
  std::vector<Cells> rows;
  const auto add = [&](const std::string& name) {
    const Graph graph = graph_of(name, o.nproc);
    rows.push_back({name, fmt::format("{}", graph.max_listeners), fmt::format("{:.6f}", graph.gap),
                    graph.topology.turns.size() > 1 ? fmt::format("over {} steps", graph.topology.turns.size()) : ""});
  };
  for (const sync::TopologyRow& row : sync::topologies()) add(std::string(row.name));
  if (!file.empty()) add(file);
  return text_table({"graph", "peers sent to per rank", "1 − ρ(W)", ""}, rows);
}

// Asserts the spectral gaps that have a closed form: the ring's depends on its largest cosine, that of exponential
// graphs on their degree.
Findings findings_of(const DivergentLabOptions& o, const std::vector<DivergentRun>& runs) {
  Findings findings;
  for (const DivergentRun& run : runs)
    if (run.spec.formula_bytes >= 0)
      findings.exact(fmt::format("{}: bytes sent by the busiest rank", run.spec.name), "O(d_max)",
                     run.spec.formula_bytes, static_cast<double>(run.bytes), "B");
  const double n = o.nproc;
  if (o.nproc > 2)
    findings.within("ring: 1 − ρ", "", 2.0 / 3 * (1 - std::cos(2 * 3.141592653589793 / n)),
                    graph_of("ring", o.nproc).gap, 1e-9);
  if (o.nproc > 2 && (o.nproc & (o.nproc - 1)) == 0) {
    findings.within("exponential: 1 − ρ", "", 2 / (1 + std::log2(n)), graph_of("exponential", o.nproc).gap, 1e-9);
    findings.within("one-peer exponential: 1 − ρ after log₂ n steps", "", 1, graph_of("one_peer", o.nproc).gap, 1e-9);
  }
  for (const DivergentRun& run : runs)
    if (run.spec.name == "parallel SGD" || run.spec.name == "exponential")
      findings
          .show(fmt::format("{}: accuracy and hours in the lecture, final excess loss here", run.spec.name),
                run.spec.name == "exponential" ? "76.27 %, 1.5 h on 32 nodes" : "76.25 %, 2.2 h on 32 nodes", "",
                fmt::format("{:.1e}", run.excess))
          .note = "another task: an image classifier trained on 256 GPUs; only the order can be compared";
  // A partial average sends S once; a ring all-reduce sends 2(n−1)/n·S. The rate follows from the lecture's time of the
  // ring.
  findings
      .show("partial average, if a ring all-reduce takes 278 ms (ResNet-50, 256 GPUs)", "150 ms",
            fmt::format("{:.0f} ms", 278 * 256 / (2.0 * 255)), "")
      .note =
      "modelled from bytes alone: n/(2(n−1)) of the ring's time; the lecture's 150 ms include latency and kernel "
      "launches";
  return findings;
}

struct GossipLabOptions {
  DivergentLabOptions divergent;
  std::string graph;
};

int run_lab_gossip(const GossipLabOptions& o) {
  check(o.divergent);
  const auto problem = make_problem(o.divergent);
  std::vector<DivergentRun> runs;
  std::vector<Cells> rows;
  for (const DivergentCase& spec : cases_of(o.divergent, o.graph)) {
    runs.push_back(run_divergent(o.divergent, *problem, spec));
    rows.push_back(table_row(o.divergent, runs.back()));
  }
  const std::string text = fmt::format(
      "{}\n"
      "\n"
      "{}\n"
      "{}Bytes are those of the busiest rank, from its communicator. With a constant step size, "
      "heterogeneous nodes cause a bias,\n"
      "which is smaller for a larger spectral gap. Gradient tracking removes it, for twice the "
      "bytes. f(x̄) is the loss of the mean of the replicas.\n",
      settings_text(o.divergent, *problem), gap_table(o.divergent, o.graph), text_table(table_head(), rows));
  return finish_lab({o.divergent.json, o.divergent.out}, "gossip", text, report_json(o.divergent, *problem, runs),
                    draw_svg(fmt::format("Decentralised SGD, {} ranks", o.divergent.nproc), "steps",
                             "squared error per coordinate", error_series(runs), Axes::plain),
                    findings_of(o.divergent, runs));
}

}  // namespace

void define_lab_gossip(const Arguments& app, SelectedCommand& chosen) {
  auto o = bind_options<GossipLabOptions>(app, chosen, run_lab_gossip);
  add_divergent_options(app, o->divergent);
  app.add_option("--graph", o->graph, "file with one more graph to run").type_name("FILE");
}

}  // namespace esp::app
