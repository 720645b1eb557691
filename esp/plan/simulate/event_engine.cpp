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
  ESP_CHECK(bytes_per_s > 0, "link bandwidth: got {} bytes/s; expected > 0", bytes_per_s);
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
  const TaskId task = add(seconds, 0, kNoId);
  run_on(task, stream);
  return task;
}

TaskId EventEngine::message(StreamId out, StreamId in, RouteId route, double alpha_s, double bytes) {
  const TaskId task = add(alpha_s, bytes, route);
  run_on(task, out);
  if (in != out) run_on(task, in);
  return task;
}

TaskId EventEngine::transfer(RouteId route, double alpha_s, double bytes) {
  return add(alpha_s, bytes, route);
}

TaskId EventEngine::queued(uint32_t queue, double seconds, int priority) {
  const TaskId task = add(seconds, 0, kNoId);
  tasks_[task].queue = queue;
  tasks_[task].priority = priority;
  return task;
}

TaskId EventEngine::join() {
  return add(0, 0, kNoId);
}

void EventEngine::run_on(TaskId task, StreamId stream) {
  if (last_[stream] != kNoId) add_dependency(task, last_[stream]);
  last_[stream] = task;
  count_busy(task, stream);
}

void EventEngine::count_busy(TaskId task, StreamId stream) {
  on_streams_.push_back({stream, tasks_[task].first_stream});
  tasks_[task].first_stream = static_cast<uint32_t>(on_streams_.size() - 1);
}

void EventEngine::add_dependency(TaskId task, TaskId before) {
  edges_.push_back({task, tasks_[before].first_edge});
  tasks_[before].first_edge = static_cast<uint32_t>(edges_.size() - 1);
  ++tasks_[task].waiting;
}

EventEngine::TaskMemory& EventEngine::memory_for(TaskId task) {
  if (tasks_[task].memory == kNoId) {
    tasks_[task].memory = static_cast<uint32_t>(memories_.size());
    memories_.push_back({});
  }
  return memories_[tasks_[task].memory];
}

void EventEngine::allocate(TaskId task, uint32_t meter, double bytes) {
  TaskMemory& memory = memory_for(task);
  ESP_CHECK(memory.alloc_meter == kNoId || memory.alloc_meter == meter,
            "task {}: allocates from two memory meters; expected one", task);
  memory.alloc_meter = meter;
  memory.alloc_bytes += bytes;
}

void EventEngine::free(TaskId task, uint32_t meter, double bytes) {
  TaskMemory& memory = memory_for(task);
  ESP_CHECK(memory.free_meter == kNoId || memory.free_meter == meter,
            "task {}: frees from two memory meters; expected one", task);
  memory.free_meter = meter;
  memory.free_bytes += bytes;
}

void EventEngine::push(double at, EventKind kind, uint32_t subject, uint32_t version) {
  heap_.push_back({at, order_++, subject, version, kind});
  std::push_heap(heap_.begin(), heap_.end());
}

void EventEngine::ready(TaskId id, double at) {
  const Task& task = tasks_[id];
  if (task.queue == kNoId) return begin(id, at);
  PriorityQueue& queue = queues_[task.queue];
  queue.ready.push_back({task.priority, order_++, id});
  std::push_heap(queue.ready.begin(), queue.ready.end());
  // The queue selects a task only after all other events of this time, so that every task that becomes ready now is a
  // candidate.
  push(at, EventKind::dispatch, task.queue);
}

void EventEngine::dispatch(uint32_t id, double at) {
  PriorityQueue& queue = queues_[id];
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
  if (task.memory != kNoId && memories_[task.memory].alloc_meter != kNoId) {
    const TaskMemory& memory = memories_[task.memory];
    MemoryMeter& meter = meters_[memory.alloc_meter];
    meter.now += memory.alloc_bytes;
    meter.peak = std::max(meter.peak, meter.now);
  }
  if (task.route != kNoId && task.bytes > 0)
    push(at + task.seconds, EventKind::latency_done, id);
  else
    push(at + task.seconds, EventKind::compute_done, id);
}

void EventEngine::finish(TaskId id, double at) {
  Task& task = tasks_[id];
  task.end = at;
  ++finished_;
  if (task.memory != kNoId && memories_[task.memory].free_meter != kNoId)
    meters_[memories_[task.memory].free_meter].now -= memories_[task.memory].free_bytes;
  for (uint32_t s = task.first_stream; s != kNoId; s = on_streams_[s].next) busy_[on_streams_[s].to] += at - task.begin;
  if (task.queue != kNoId) {
    queues_[task.queue].busy = false;
    push(at, EventKind::dispatch, task.queue);
  }
  if (record_intervals_ && at > task.begin) intervals_.push_back({id, task.begin, at});
  for (uint32_t e = task.first_edge; e != kNoId; e = edges_[e].next)
    if (--tasks_[edges_[e].to].waiting == 0) ready(edges_[e].to, at);
}

void EventEngine::open_flow(TaskId task, double at) {
  uint32_t id;
  if (free_flows_.empty()) {
    id = static_cast<uint32_t>(flows_.size());
    flows_.push_back({});
  } else {
    id = free_flows_.back();
    free_flows_.pop_back();
  }
  MessageFlow& flow = flows_[id];
  flow.task = task;
  flow.left = tasks_[task].bytes;
  flow.rate = 0;
  flow.since = at;
  flow.active = true;
  const std::vector<LinkId>& route = routes_[tasks_[task].route];
  bool alone = true;
  double least = 0;
  for (const LinkId id_of_link : route) {
    LinkLoad& link = links_[id_of_link];
    if (link.flows.empty()) link.since = at;
    alone = alone && link.flows.empty();
    least = least == 0 ? link.capacity : std::min(least, link.capacity);
    link.flows.push_back(id);
    link.carried += flow.left;
  }
  if (route.empty()) return push(at, EventKind::transfer_done, id, ++flow.version);
  if (!alone) return update_rates(route, at);
  flow.rate = least;
  push(at + flow.left / least, EventKind::transfer_done, id, ++flow.version);
}

void EventEngine::close_flow(uint32_t id, double at) {
  MessageFlow& flow = flows_[id];
  flow.active = false;
  ++flow.version;
  const std::vector<LinkId>& route = routes_[tasks_[flow.task].route];
  bool others = false;
  for (const LinkId id_of_link : route) {
    LinkLoad& link = links_[id_of_link];
    link.flows.erase(std::find(link.flows.begin(), link.flows.end(), id));
    if (link.flows.empty()) link.busy += at - link.since;
    others = others || !link.flows.empty();
  }
  if (others) update_rates(route, at);
  free_flows_.push_back(id);
}

// Recomputes the rates of the flows that are connected to these links, directly or through shared links. Other flows
// keep their rates.
void EventEngine::update_rates(std::span<const LinkId> from, double at) {
  ++visit_;
  std::vector<LinkId> links;
  std::vector<uint32_t> flows;
  const auto visit_link = [&](LinkId link) {
    if (links_[link].visit == visit_) return;
    links_[link].visit = visit_;
    links.push_back(link);
  };
  for (const LinkId link : from) visit_link(link);
  for (size_t i = 0; i < links.size(); ++i)
    for (const uint32_t flow : links_[links[i]].flows) {
      if (flows_[flow].visit == visit_) continue;
      flows_[flow].visit = visit_;
      flows.push_back(flow);
      for (const LinkId link : routes_[tasks_[flows_[flow].task].route]) visit_link(link);
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
    MessageFlow& flow = flows_[flows[i]];
    if (rates[i] == flow.rate) continue;  // rate unchanged: the scheduled end event stays valid
    flow.left = std::max(0.0, flow.left - flow.rate * (at - flow.since));
    flow.since = at;
    flow.rate = rates[i];
    push(at + flow.left / flow.rate, EventKind::transfer_done, flows[i], ++flow.version);
  }
}

double EventEngine::run() {
  for (TaskId id = 0; id < tasks_.size(); ++id)
    if (tasks_[id].waiting == 0) ready(id, 0);
  while (!heap_.empty()) {
    std::pop_heap(heap_.begin(), heap_.end());
    const EngineEvent event = heap_.back();
    heap_.pop_back();
    if (event.kind == EventKind::transfer_done && event.version != flows_[event.subject].version) continue;
    ++num_events_;
    now_ = event.at;
    switch (event.kind) {
      case EventKind::compute_done:
        finish(event.subject, event.at);
        break;
      case EventKind::latency_done:
        open_flow(event.subject, event.at);
        break;
      case EventKind::dispatch:
        dispatch(event.subject, event.at);
        break;
      case EventKind::transfer_done: {
        const TaskId task = flows_[event.subject].task;
        close_flow(event.subject, event.at);
        finish(task, event.at);
        break;
      }
    }
  }
  if (finished_ < tasks_.size()) {
    TaskId stuck = 0;
    while (tasks_[stuck].end >= 0) ++stuck;
    throw UsageError(
        fmt::format("event simulation: {} of {} tasks cannot run because of a dependency cycle, for example task {}",
                    tasks_.size() - finished_, tasks_.size(), stuck));
  }
  return now_;
}

}  // namespace esp::plan
