// Discrete-event engine: tasks with dependencies, streams that run one task at a time, and links that messages share.
//
// A task is a computation (seconds on a stream), a message or a join (takes no time). A message takes its latency α,
// then sends its bytes over a route of links; concurrent messages share links at max–min fair rates. A stream is, for
// example, a kernel queue or one direction of a network port. It runs its tasks in the order in which they were added.
// A task may be on several streams: a message is on those of its sender and its receiver. A task may allocate memory
// when it begins and free memory when it ends.
//
// Add all tasks, then call run() once. Times are doubles; sums of integers are exact.
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
inline constexpr uint32_t kNoId = UINT32_MAX;

struct TaskInterval {  // the time interval in which one task ran, for timelines
  TaskId task = 0;
  double begin = 0, end = 0;
};

class EventEngine {
 public:
  explicit EventEngine(bool record_intervals = false) : record_intervals_(record_intervals) {}
  void reserve(size_t tasks);

  StreamId add_stream() { return last_.push_back(kNoId), busy_.push_back(0), static_cast<StreamId>(last_.size() - 1); }
  LinkId add_link(double bytes_per_s);
  // Adds a route over these links (in any order, each link once). An empty list has infinite bandwidth.
  RouteId add_route(std::vector<LinkId> links);
  // Adds a priority queue. It runs one task at a time: of the ready tasks, the one with the smallest priority value;
  // among equal priorities, the one that became ready first.
  uint32_t add_queue() { return queues_.push_back({}), static_cast<uint32_t>(queues_.size() - 1); }
  uint32_t add_memory() { return meters_.push_back({}), static_cast<uint32_t>(meters_.size() - 1); }

  TaskId compute(StreamId stream, double seconds);
  TaskId message(StreamId out, StreamId in, RouteId route, double alpha_s, double bytes);
  TaskId transfer(RouteId route, double alpha_s, double bytes);  // a message that uses links but no stream
  TaskId queued(uint32_t queue, double seconds, int priority);
  TaskId join();                              // waits for its dependencies; takes no time, uses no stream
  void run_on(TaskId task, StreamId stream);  // the task also runs on this stream, after the tasks already added to it
  // adds the task to the busy time of the stream; the task does not wait for the stream
  void count_busy(TaskId task, StreamId stream);
  void add_dependency(TaskId task, TaskId before);
  // memory that the task allocates when it begins; a task allocates from one meter only
  void allocate(TaskId task, uint32_t meter, double bytes);
  void free(TaskId task, uint32_t meter, double bytes);  // memory that the task frees when it ends

  // Runs all tasks and returns the end time in seconds. UsageError if the dependencies have a cycle.
  double run();

  double end_time(TaskId task) const { return tasks_[task].end; }
  double begin_time(TaskId task) const { return tasks_[task].begin; }
  double busy_time(StreamId stream) const { return busy_[stream]; }
  double peak_bytes_of(uint32_t meter) const { return meters_[meter].peak; }
  double bytes_carried(LinkId link) const { return links_[link].carried; }
  double link_busy_time(LinkId link) const { return links_[link].busy; }
  uint64_t num_events() const { return num_events_; }
  size_t num_tasks() const { return tasks_.size(); }
  // Sorted by end time. Empty unless the engine was created with record_intervals.
  const std::vector<TaskInterval>& intervals() const { return intervals_; }

 private:
  struct Task {
    double seconds = 0;  // seconds of a computation, or latency α of a message
    double bytes = 0;
    double begin = -1, end = -1;
    uint32_t waiting = 0, first_edge = kNoId, first_stream = kNoId;
    RouteId route = kNoId;
    uint32_t memory = kNoId, queue = kNoId;
    int priority = 0;
  };
  struct QueuedTask {
    int priority = 0;
    uint64_t order = 0;
    TaskId task = 0;
    bool operator<(const QueuedTask& o) const {
      return priority != o.priority ? priority > o.priority : order > o.order;
    }
  };
  struct PriorityQueue {
    std::vector<QueuedTask> ready;  // tasks that can run, as a binary heap
    bool busy = false;
  };
  struct GraphEdge {
    uint32_t to = 0, next = kNoId;
  };
  struct TaskMemory {
    uint32_t alloc_meter = kNoId, free_meter = kNoId;
    double alloc_bytes = 0, free_bytes = 0;
  };
  struct MemoryMeter {
    double now = 0, peak = 0;
  };
  struct MessageFlow {
    TaskId task = 0;
    double left = 0, rate = 0, since = 0;
    uint32_t version = 0;
    bool active = false;
    uint64_t visit = 0;
  };
  struct LinkLoad {
    double capacity = 0, carried = 0, busy = 0, since = 0;
    std::vector<uint32_t> flows;  // flows that use the link now
    uint64_t visit = 0;
  };
  enum class EventKind : uint8_t { compute_done, latency_done, transfer_done, dispatch };
  struct EngineEvent {
    double at = 0;
    uint64_t order = 0;  // number of the event; orders events of the same time
    uint32_t subject = 0, version = 0;
    EventKind kind = EventKind::compute_done;
    bool operator<(const EngineEvent& other) const { return at != other.at ? at > other.at : order > other.order; }
  };

  TaskId add(double seconds, double bytes, RouteId route);
  TaskMemory& memory_for(TaskId task);
  void push(double at, EventKind kind, uint32_t subject, uint32_t version = 0);
  void ready(TaskId task, double at);
  void begin(TaskId task, double at);
  void dispatch(uint32_t queue, double at);
  void finish(TaskId task, double at);
  void open_flow(TaskId task, double at);
  void close_flow(uint32_t flow, double at);
  void update_rates(std::span<const LinkId> from, double at);

  const bool record_intervals_;
  std::vector<Task> tasks_;
  std::vector<GraphEdge> edges_, on_streams_;  // edges_: task → dependent task; on_streams_: task → stream
  std::vector<TaskId> last_;                   // last task added to each stream
  std::vector<double> busy_;                   // busy seconds of each stream
  std::vector<std::vector<LinkId>> routes_;
  std::vector<LinkLoad> links_;
  std::vector<MessageFlow> flows_;
  std::vector<uint32_t> free_flows_;
  std::vector<TaskMemory> memories_;
  std::vector<MemoryMeter> meters_;
  std::vector<PriorityQueue> queues_;
  std::vector<EngineEvent> heap_;
  std::vector<TaskInterval> intervals_;
  uint64_t order_ = 0, num_events_ = 0, visit_ = 0;
  size_t finished_ = 0;
  double now_ = 0;
};

}  // namespace esp::plan
