// Discrete-event engine: tasks with dependencies, streams that run one task at a time, links shared by messages.
//
// A task is compute (seconds on a stream), a message (α, then bytes over a route of links with max–min fair shares) or
// a join without cost. A stream, such as a processor's kernel queue or one direction of a port, runs its tasks in the
// order in which they were added; a task may be on several streams, as a message is on its sender's and its receiver's.
// Tasks allocate memory of a place when they begin and free it when they end.
//
// Add everything, then run once. Times are doubles; sums of integers are exact.
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <vector>

namespace esp::plan {

using TaskId = uint32_t;
using StreamId = uint32_t;
using LinkId = uint32_t;
using RouteId = uint32_t;
inline constexpr uint32_t kNone = UINT32_MAX;

struct TaskInterval {  // of one task, for timelines
  TaskId task = 0;
  double begin = 0, end = 0;
};

class EventEngine {
 public:
  explicit EventEngine(bool keep_intervals = false) : keep_(keep_intervals) {}
  void reserve(size_t tasks);

  StreamId add_stream() { return last_.push_back(kNone), busy_.push_back(0), static_cast<StreamId>(last_.size() - 1); }
  LinkId add_link(double bytes_per_s);
  // Links in any order, each once; none: infinitely fast.
  RouteId add_route(std::vector<LinkId> links);
  // Serves one ready task at a time: the one with the least priority value, ties by ready time.
  uint32_t add_queue() { return queues_.push_back({}), static_cast<uint32_t>(queues_.size() - 1); }
  uint32_t add_place() { return places_.push_back({}), static_cast<uint32_t>(places_.size() - 1); }

  TaskId compute(StreamId stream, double seconds);
  TaskId message(StreamId out, StreamId in, RouteId route, double alpha_s, double bytes);
  TaskId transfer(RouteId route, double alpha_s, double bytes);  // a message on no stream
  TaskId queued(uint32_t queue, double seconds, int priority);
  TaskId join();                            // no time, no stream
  void on(TaskId task, StreamId stream);    // after the tasks already on it
  void uses(TaskId task, StreamId stream);  // counts as its busy time, in any order
  void after(TaskId task, TaskId before);
  void takes(TaskId task, uint32_t place, double bytes);  // at its begin; of one place
  void gives(TaskId task, uint32_t place, double bytes);  // at its end

  // UsageError for a dependency cycle.
  double run();

  double end_of(TaskId task) const { return tasks_[task].end; }
  double begin_of(TaskId task) const { return tasks_[task].begin; }
  double busy_of(StreamId stream) const { return busy_[stream]; }
  double peak_of(uint32_t place) const { return places_[place].peak; }
  double carried_by(LinkId link) const { return links_[link].carried; }
  double busy_link(LinkId link) const { return links_[link].busy; }
  uint64_t num_events() const { return num_events_; }
  size_t num_tasks() const { return tasks_.size(); }
  const std::vector<TaskInterval>& intervals() const { return intervals_; }  // by end time, if recorded

 private:
  struct Task {
    double seconds = 0;  // of compute; α of a message
    double bytes = 0;
    double begin = -1, end = -1;
    uint32_t waiting = 0, first_edge = kNone, first_stream = kNone;
    RouteId route = kNone;
    uint32_t memory = kNone, queue = kNone;
    int priority = 0;
  };
  struct Waiting {
    int priority = 0;
    uint64_t order = 0;
    TaskId task = 0;
    bool operator<(const Waiting& o) const { return priority != o.priority ? priority > o.priority : order > o.order; }
  };
  struct Queue {
    std::vector<Waiting> ready;  // a heap
    bool busy = false;
  };
  struct Edge {
    uint32_t to = 0, next = kNone;
  };
  struct Memory {
    uint32_t take_place = kNone, give_place = kNone;
    double take = 0, give = 0;
  };
  struct Place {
    double now = 0, peak = 0;
  };
  struct Flow {
    TaskId task = 0;
    double left = 0, rate = 0, since = 0;
    uint32_t version = 0;
    bool active = false;
    uint64_t mark = 0;
  };
  struct Link {
    double capacity = 0, carried = 0, busy = 0, since = 0;
    std::vector<uint32_t> flows;  // active flows
    uint64_t mark = 0;
  };
  enum class What : uint8_t { ended, latency_over, flow_over, dispatch };
  struct Event {
    double at = 0;
    uint64_t order = 0;  // breaks ties by creation
    uint32_t who = 0, version = 0;
    What what = What::ended;
    bool operator<(const Event& other) const { return at != other.at ? at > other.at : order > other.order; }
  };

  TaskId add(double seconds, double bytes, RouteId route);
  Memory& memory_of(TaskId task);
  void push(double at, What what, uint32_t who, uint32_t version = 0);
  void ready(TaskId task, double at);
  void begin(TaskId task, double at);
  void dispatch(uint32_t queue, double at);
  void finish(TaskId task, double at);
  void open_flow(TaskId task, double at);
  void close_flow(uint32_t flow, double at);
  void share(std::span<const LinkId> from, double at);

  const bool keep_;
  std::vector<Task> tasks_;
  std::vector<Edge> edges_, on_streams_;  // on_streams_: `to` is a stream
  std::vector<TaskId> last_;              // by stream: the last added task
  std::vector<double> busy_;              // by stream
  std::vector<std::vector<LinkId>> routes_;
  std::vector<Link> links_;
  std::vector<Flow> flows_;
  std::vector<uint32_t> spare_flows_;
  std::vector<Memory> memories_;
  std::vector<Place> places_;
  std::vector<Queue> queues_;
  std::vector<Event> heap_;
  std::vector<TaskInterval> intervals_;
  uint64_t order_ = 0, num_events_ = 0, mark_ = 0;
  size_t finished_ = 0;
  double now_ = 0;
};

}  // namespace esp::plan
