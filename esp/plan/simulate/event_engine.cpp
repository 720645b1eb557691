#include "esp/plan/simulate/event_engine.h"

#include <algorithm>

#include <fmt/format.h>

#include "esp/base/check.h"
#include "esp/base/error.h"
#include "esp/plan/simulate/fair_share.h"

namespace esp::plan {

void EventEngine::reserve(size_t tasks) {
  tasks_.reserve(tasks);
  edges_.reserve(tasks * 2);
  on_streams_.reserve(tasks * 2);
}

LinkId EventEngine::add_link(double bytes_per_s) {
  ESP_CHECK(bytes_per_s > 0, "a link of {} bytes/s", bytes_per_s);
  links_.push_back({bytes_per_s, 0, 0, 0, {}, 0});
  return static_cast<LinkId>(links_.size() - 1);
}

RouteId EventEngine::add_route(std::vector<LinkId> links) {
  routes_.push_back(std::move(links));
  return static_cast<RouteId>(routes_.size() - 1);
}

TaskId EventEngine::add(double seconds, double bytes, RouteId route) {
  Task task;
  task.seconds = seconds;
  task.bytes = bytes;
  task.route = route;
  tasks_.push_back(task);
  return static_cast<TaskId>(tasks_.size() - 1);
}

TaskId EventEngine::compute(StreamId stream, double seconds) {
  const TaskId task = add(seconds, 0, kNone);
  on(task, stream);
  return task;
}

TaskId EventEngine::message(StreamId out, StreamId in, RouteId route, double alpha_s, double bytes) {
  const TaskId task = add(alpha_s, bytes, route);
  on(task, out);
  if (in != out) on(task, in);
  return task;
}

TaskId EventEngine::transfer(RouteId route, double alpha_s, double bytes) {
  return add(alpha_s, bytes, route);
}

TaskId EventEngine::queued(uint32_t queue, double seconds, int priority) {
  const TaskId task = add(seconds, 0, kNone);
  tasks_[task].queue = queue;
  tasks_[task].priority = priority;
  return task;
}

TaskId EventEngine::join() {
  return add(0, 0, kNone);
}

void EventEngine::on(TaskId task, StreamId stream) {
  if (last_[stream] != kNone) after(task, last_[stream]);
  last_[stream] = task;
  uses(task, stream);
}

void EventEngine::uses(TaskId task, StreamId stream) {
  on_streams_.push_back({stream, tasks_[task].first_stream});
  tasks_[task].first_stream = static_cast<uint32_t>(on_streams_.size() - 1);
}

void EventEngine::after(TaskId task, TaskId before) {
  edges_.push_back({task, tasks_[before].first_edge});
  tasks_[before].first_edge = static_cast<uint32_t>(edges_.size() - 1);
  ++tasks_[task].waiting;
}

EventEngine::Memory& EventEngine::memory_of(TaskId task) {
  if (tasks_[task].memory == kNone) {
    tasks_[task].memory = static_cast<uint32_t>(memories_.size());
    memories_.push_back({});
  }
  return memories_[tasks_[task].memory];
}

void EventEngine::takes(TaskId task, uint32_t place, double bytes) {
  Memory& memory = memory_of(task);
  ESP_CHECK(memory.take_place == kNone || memory.take_place == place, "memory of two places in one task");
  memory.take_place = place;
  memory.take += bytes;
}

void EventEngine::gives(TaskId task, uint32_t place, double bytes) {
  Memory& memory = memory_of(task);
  ESP_CHECK(memory.give_place == kNone || memory.give_place == place, "memory of two places in one task");
  memory.give_place = place;
  memory.give += bytes;
}

void EventEngine::push(double at, What what, uint32_t who, uint32_t version) {
  heap_.push_back({at, order_++, who, version, what});
  std::push_heap(heap_.begin(), heap_.end());
}

void EventEngine::ready(TaskId id, double at) {
  const Task& task = tasks_[id];
  if (task.queue == kNone) return begin(id, at);
  Queue& queue = queues_[task.queue];
  queue.ready.push_back({task.priority, order_++, id});
  std::push_heap(queue.ready.begin(), queue.ready.end());
  // After all other events of this moment, so that the choice is among everything that is ready now.
  push(at, What::dispatch, task.queue);
}

void EventEngine::dispatch(uint32_t id, double at) {
  Queue& queue = queues_[id];
  if (queue.busy || queue.ready.empty()) return;
  std::pop_heap(queue.ready.begin(), queue.ready.end());
  const TaskId task = queue.ready.back().task;
  queue.ready.pop_back();
  queue.busy = true;
  begin(task, at);
}

void EventEngine::begin(TaskId id, double at) {
  Task& task = tasks_[id];
  task.begin = at;
  if (task.memory != kNone && memories_[task.memory].take_place != kNone) {
    const Memory& memory = memories_[task.memory];
    Place& place = places_[memory.take_place];
    place.now += memory.take;
    place.peak = std::max(place.peak, place.now);
  }
  if (task.route != kNone && task.bytes > 0)
    push(at + task.seconds, What::latency_over, id);
  else
    push(at + task.seconds, What::ended, id);
}

void EventEngine::finish(TaskId id, double at) {
  Task& task = tasks_[id];
  task.end = at;
  ++finished_;
  if (task.memory != kNone && memories_[task.memory].give_place != kNone)
    places_[memories_[task.memory].give_place].now -= memories_[task.memory].give;
  for (uint32_t s = task.first_stream; s != kNone; s = on_streams_[s].next) busy_[on_streams_[s].to] += at - task.begin;
  if (task.queue != kNone) {
    queues_[task.queue].busy = false;
    push(at, What::dispatch, task.queue);
  }
  if (keep_ && at > task.begin) intervals_.push_back({id, task.begin, at});
  for (uint32_t e = task.first_edge; e != kNone; e = edges_[e].next)
    if (--tasks_[edges_[e].to].waiting == 0) ready(edges_[e].to, at);
}

void EventEngine::open_flow(TaskId task, double at) {
  uint32_t id;
  if (spare_flows_.empty()) {
    id = static_cast<uint32_t>(flows_.size());
    flows_.push_back({});
  } else {
    id = spare_flows_.back();
    spare_flows_.pop_back();
  }
  Flow& flow = flows_[id];
  flow.task = task;
  flow.left = tasks_[task].bytes;
  flow.rate = 0;
  flow.since = at;
  flow.active = true;
  const std::vector<LinkId>& route = routes_[tasks_[task].route];
  bool alone = true;
  double least = 0;
  for (const LinkId id_of_link : route) {
    Link& link = links_[id_of_link];
    if (link.flows.empty()) link.since = at;
    alone = alone && link.flows.empty();
    least = least == 0 ? link.capacity : std::min(least, link.capacity);
    link.flows.push_back(id);
    link.carried += flow.left;
  }
  if (route.empty()) return push(at, What::flow_over, id, ++flow.version);
  if (!alone) return share(route, at);
  flow.rate = least;
  push(at + flow.left / least, What::flow_over, id, ++flow.version);
}

void EventEngine::close_flow(uint32_t id, double at) {
  Flow& flow = flows_[id];
  flow.active = false;
  ++flow.version;
  const std::vector<LinkId>& route = routes_[tasks_[flow.task].route];
  bool others = false;
  for (const LinkId id_of_link : route) {
    Link& link = links_[id_of_link];
    link.flows.erase(std::find(link.flows.begin(), link.flows.end(), id));
    if (link.flows.empty()) link.busy += at - link.since;
    others = others || !link.flows.empty();
  }
  if (others) share(route, at);
  spare_flows_.push_back(id);
}

// Recomputes the rates of the flows connected to these links through common links; other flows are unaffected.
void EventEngine::share(std::span<const LinkId> from, double at) {
  ++mark_;
  std::vector<LinkId> links;
  std::vector<uint32_t> flows;
  const auto reach = [&](LinkId link) {
    if (links_[link].mark == mark_) return;
    links_[link].mark = mark_;
    links.push_back(link);
  };
  for (const LinkId link : from) reach(link);
  for (size_t i = 0; i < links.size(); ++i)
    for (const uint32_t flow : links_[links[i]].flows) {
      if (flows_[flow].mark == mark_) continue;
      flows_[flow].mark = mark_;
      flows.push_back(flow);
      for (const LinkId link : routes_[tasks_[flows_[flow].task].route]) reach(link);
    }
  std::vector<double> capacities(links.size());
  std::vector<std::vector<uint32_t>> routes(flows.size());
  for (size_t i = 0; i < links.size(); ++i) {
    capacities[i] = links_[links[i]].capacity;
    for (const uint32_t flow : links_[links[i]].flows)
      routes[static_cast<size_t>(std::find(flows.begin(), flows.end(), flow) - flows.begin())].push_back(
          static_cast<uint32_t>(i));
  }
  const std::vector<double> rates = max_min_rates(routes, capacities);
  for (size_t i = 0; i < flows.size(); ++i) {
    Flow& flow = flows_[flows[i]];
    if (rates[i] == flow.rate) continue;  // its end is unchanged
    flow.left = std::max(0.0, flow.left - flow.rate * (at - flow.since));
    flow.since = at;
    flow.rate = rates[i];
    push(at + flow.left / flow.rate, What::flow_over, flows[i], ++flow.version);
  }
}

double EventEngine::run() {
  for (TaskId id = 0; id < tasks_.size(); ++id)
    if (tasks_[id].waiting == 0) ready(id, 0);
  while (!heap_.empty()) {
    std::pop_heap(heap_.begin(), heap_.end());
    const Event event = heap_.back();
    heap_.pop_back();
    if (event.what == What::flow_over && event.version != flows_[event.who].version) continue;
    ++num_events_;
    now_ = event.at;
    switch (event.what) {
      case What::ended:
        finish(event.who, event.at);
        break;
      case What::latency_over:
        open_flow(event.who, event.at);
        break;
      case What::dispatch:
        dispatch(event.who, event.at);
        break;
      case What::flow_over: {
        const TaskId task = flows_[event.who].task;
        close_flow(event.who, event.at);
        finish(task, event.at);
        break;
      }
    }
  }
  if (finished_ < tasks_.size()) {
    TaskId stuck = 0;
    while (tasks_[stuck].end >= 0) ++stuck;
    throw UsageError(fmt::format("dependency cycle: {} of {} tasks cannot run, for example task {}",
                                 tasks_.size() - finished_, tasks_.size(), stuck));
  }
  return now_;
}

}  // namespace esp::plan
