#include "esp/plan/simulate/collective.h"

#include <map>
#include <optional>

#include <fmt/format.h>

#include "esp/base/clock.h"
#include "esp/base/error.h"
#include "esp/comm/plan.h"

namespace esp::plan {
namespace {

bool is_message(const comm::PlanStep& step) {
  return step.lane >= 0;
}

}  // namespace

CollectiveGraph::CollectiveGraph(std::span<const comm::Schedule> schedules, size_t element_bytes)
    : size_(static_cast<int>(schedules.size())), sent_(schedules.size()), received_(schedules.size()) {
  std::vector<std::unique_ptr<comm::Plan>> plans;
  // [rank][action of the rank's schedule]: index of its node
  std::vector<std::vector<uint32_t>> node_of(schedules.size());
  // The k-th send from a to b and the k-th receive on b from a share one node. It is added when the first of the two is
  // read.
  std::map<std::pair<int, int>, std::vector<uint32_t>> between;
  for (int r = 0; r < size_; ++r) {
    plans.push_back(comm::make_plan(schedules[static_cast<size_t>(r)], element_bytes, std::nullopt, 0));
    const comm::Plan& plan = *plans.back();
    auto& mine = node_of[static_cast<size_t>(r)];
    for (const comm::PlanStep& step : plan.steps) {
      if (!is_message(step)) {
        mine.push_back(static_cast<uint32_t>(nodes_.size()));
        nodes_.push_back({r, -1, 0, {}});
        continue;
      }
      const comm::MessageLane& lane = plan.lanes[static_cast<size_t>(step.lane)];
      const int from = lane.sends ? r : lane.peer, to = lane.sends ? lane.peer : r;
      auto& wire = between[{from, to}];
      while (wire.size() <= step.message) {
        wire.push_back(static_cast<uint32_t>(nodes_.size()));
        nodes_.push_back({from, to, -1, {}});
      }
      TransferNode& node = nodes_[wire[step.message]];
      const auto bytes = static_cast<double>(step.bytes);
      if (node.bytes >= 0 && node.bytes != bytes)
        throw UsageError(
            fmt::format("collective: message {} from rank {} to rank {} has {} bytes in the schedule of one rank and "
                        "{} in that of the other; expected equal sizes",
                        step.message, from, to, node.bytes, bytes));
      node.bytes = bytes;
      (lane.sends ? sent_ : received_)[static_cast<size_t>(r)] += bytes;
      mine.push_back(wire[step.message]);
    }
  }
  for (int r = 0; r < size_; ++r) {
    const comm::Plan& plan = *plans[static_cast<size_t>(r)];
    const auto& mine = node_of[static_cast<size_t>(r)];
    uint32_t last_out = kNoId, last_in = kNoId;
    for (size_t s = 0; s < plan.steps.size(); ++s) {
      const comm::PlanStep& step = plan.steps[s];
      TransferNode& node = nodes_[mine[s]];
      for (uint32_t b = 0; b < step.num_before; ++b) node.before.push_back(mine[plan.before[plan.first_before[s] + b]]);
      if (!is_message(step)) continue;
      uint32_t& last = plan.lanes[static_cast<size_t>(step.lane)].sends ? last_out : last_in;
      if (last != kNoId) node.before.push_back(last);
      last = mine[s];
    }
  }
  double out = 0, in = 0;
  for (int r = 0; r < size_; ++r) out += bytes_sent(r), in += bytes_received(r);
  if (out != in)
    throw UsageError(fmt::format(
        "collective: the schedules send {} bytes and receive {}; expected a receive for every send", out, in));
}

std::vector<TaskId> add_collective(EventEngine& engine, const CollectiveGraph& shape, const CollectivePorts& ports,
                                   std::span<const TaskId> ready) {
  const auto nodes = shape.nodes();
  std::vector<TaskId> tasks, done(static_cast<size_t>(shape.size()));
  tasks.reserve(nodes.size());
  for (const CollectiveGraph::TransferNode& node : nodes) {
    if (node.to < 0) {
      tasks.push_back(engine.join());
      continue;
    }
    const CollectivePorts::LinkPath path = ports.path(node.from, node.to);
    const TaskId task = engine.transfer(path.route, path.alpha_s, node.bytes);
    engine.count_busy(task, ports.out[static_cast<size_t>(node.from)]);
    engine.count_busy(task, ports.in[static_cast<size_t>(node.to)]);
    tasks.push_back(task);
  }
  for (int r = 0; r < shape.size(); ++r) {
    done[static_cast<size_t>(r)] = engine.join();
    if (ready[static_cast<size_t>(r)] != kNoId)
      engine.add_dependency(done[static_cast<size_t>(r)], ready[static_cast<size_t>(r)]);
  }
  for (size_t i = 0; i < nodes.size(); ++i) {
    for (const uint32_t before : nodes[i].before) engine.add_dependency(tasks[i], tasks[before]);
    for (const int end : {nodes[i].from, nodes[i].to}) {
      if (end < 0) continue;
      if (ready[static_cast<size_t>(end)] != kNoId) engine.add_dependency(tasks[i], ready[static_cast<size_t>(end)]);
      engine.add_dependency(done[static_cast<size_t>(end)], tasks[i]);
    }
  }
  return done;
}

std::vector<comm::Schedule> schedules_of(const comm::AlgorithmRow& row, const comm::CollectiveSpec& problem) {
  std::vector<comm::Schedule> all;
  comm::CollectiveSpec one = problem;
  for (one.rank = 0; one.rank < problem.size; ++one.rank) all.push_back(row.build(one));
  return all;
}

CollectiveTime time_collective(std::span<const comm::Schedule> schedules, size_t element_bytes, double alpha_s,
                               double bytes_per_s) {
  const CollectiveGraph shape(schedules, element_bytes);
  EventEngine engine;
  CollectivePorts ports;
  std::vector<LinkId> out, in;
  for (int r = 0; r < shape.size(); ++r) {
    ports.out.push_back(engine.add_stream());
    ports.in.push_back(engine.add_stream());
    out.push_back(engine.add_link(bytes_per_s));
    in.push_back(engine.add_link(bytes_per_s));
  }
  std::map<std::pair<int, int>, RouteId> routes;
  ports.path = [&](int from, int to) {
    auto [at, fresh] = routes.try_emplace({from, to}, kNoId);
    if (fresh) at->second = engine.add_route({out[static_cast<size_t>(from)], in[static_cast<size_t>(to)]});
    return CollectivePorts::LinkPath{at->second, alpha_s};
  };
  const std::vector<TaskId> ready(static_cast<size_t>(shape.size()), kNoId);
  add_collective(engine, shape, ports, ready);
  const int64_t begun = now_ns();
  const double seconds = engine.run();
  return {seconds, engine.num_events(), static_cast<double>(now_ns() - begun) * 1e-9};
}

}  // namespace esp::plan
