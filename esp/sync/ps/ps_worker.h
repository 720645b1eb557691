// PsWorker: one rank of a job with parameter servers. Its communication thread sends pushed gradients, receives pulled
// weights, and runs the server of this rank, if it has one.
//
// The training thread submits commands and waits. The communication thread owns everything else, including transport
// and server. Every wait has a deadline. An error on the communication thread (a lost peer, an invalid message) is
// thrown by the next command or wait. The communication thread owns the server's memory, except directly after a
// synchronisation: then no message is in flight, and the training thread may read that memory.
#pragma once

#include <condition_variable>
#include <functional>
#include <mutex>
#include <span>
#include <thread>

#include "esp/obs/spans.h"
#include "esp/sync/ps/message_queue.h"
#include "esp/sync/ps/push_queue.h"
#include "esp/sync/ps/server.h"

namespace esp::sync {

class PsWorker {
 public:
  struct Setup {
    const ServerLayout* layout = nullptr;  // not owned
    PsOptions ps;
    DType storage = DType::f32, wire = DType::f32;
    tensor::Context context;  // context for the server, which computes on the communication thread
    int rank = 0;
    Duration timeout = std::chrono::minutes(10);
    // Callbacks on the communication thread, workers only. gradients: returns the send buffer of a partition's
    // gradients. receive_buffer: returns the receive buffer of its weights. received: called when its weights have
    // arrived.
    std::function<const void*(int partition)> gradients;
    std::function<std::byte*(int partition)> receive_buffer;
    std::function<void(int partition)> received;
    PsCompression* compression = nullptr;  // not owned; null without compression
  };
  PsWorker(const Setup& setup, std::unique_ptr<net::Transport> transport);
  // Waits until every peer has sent its done message. Does not wait during stack unwinding.
  ~PsWorker();

  ShardServer* server() { return server_.get(); }  // null if this rank has no server

  void begin_at(int64_t step);  // sets the first step; requires that no message is in flight
  // pushes a partition whose gradients are complete and do not change until the end of the step
  void push(int partition);
  void push(std::span<const int> partitions);  // as above, and queues all partitions before the first is sent
  // asynchronous modes: asks the servers to apply the pushed gradients
  void end_step(double lr, double factor, bool skip);
  void pull(bool now, bool stop_requested);  // asynchronous modes: requests the weights of the next step
  void pause(bool paused);                   // asynchronous modes: pauses or resumes the server of this rank
  void publish();  // synchronous mode: call after the optimizer of this rank's server has stepped
  void next_step() { ++step_; }

  int64_t step() const { return step_; }
  // Waits in the current step:
  //   wait_values       until the weights of a unit have arrived (-1: of all units)
  //   wait_pushed       until all pushes are delivered
  //   wait_gathered     until the gradients of all workers have arrived
  //   wait_all_workers  until every worker has ended the step
  void wait_values(int unit = -1);
  void wait_pushed();
  void wait_gathered();
  void wait_all_workers();
  int64_t stop();  // returns the step before which all ranks stop; 0: no stop

  struct WorkerTraffic {
    // bytes that this worker pushed and pulled, including those to and from a server on its own rank
    uint64_t pushed_bytes = 0, pulled_bytes = 0;
    MessageQueue::QueueTraffic queue;
    net::Traffic traffic;
    std::vector<int> pushed, received;  // the partitions of the last step, in the order of transfer
  };
  WorkerTraffic counts() const;
  std::string_view transport() const { return messages_->transport(); }
  double exposed_ms() const { return exposed_ms_; }
  void reset_times() { exposed_ms_ = 0; }
  void set_trace(obs::TraceRow* trace) { trace_ = trace; }

 private:
  struct Command {
    enum class Kind : uint8_t { push, end_step, pull, publish, pause, begin_at, shutdown } kind;
    int partition = 0;
    Message message;
  };
  void submit(const Command& command);
  void wait_executed();
  template <typename F>
  void wait(const char* what, F&& holds, const std::function<std::string()>& missing);
  void run();
  void run_until_shutdown();
  bool execute();
  void execute(const Command& command);
  void push_ready();
  int64_t push_bytes(int partition) const;
  void arrived(int peer, const Message& message);
  void notify();

  const Setup setup_;
  const bool is_worker_;
  std::unique_ptr<ShardServer> server_;
  std::unique_ptr<MessageQueue> messages_;
  // The members below are owned by the communication thread.
  PushQueue queue_;
  std::vector<Command> executing_;
  int64_t pushing_step_ = -1;
  int num_done_ = 0;
  bool shutdown_requested_ = false, shutdown_sent_ = false;
  Clock::time_point shutdown_deadline_, last_command_;
  // The members below are owned by the training thread.
  int64_t step_ = 0;
  double exposed_ms_ = 0;
  obs::TraceRow* trace_ = nullptr;

  mutable std::mutex mutex_;  // guards all members below
  std::condition_variable changed_;
  std::vector<Command> commands_;
  std::vector<int64_t> versions_;  // [partition]: the step to which the received weights belong
  int64_t gathered_ = 0, slowest_ = 0, stop_ = 0;
  bool pushing_ = false;
  WorkerTraffic counts_;
  std::exception_ptr failed_;

  std::thread thread_;  // last member: the thread starts after all other members are initialised
};

}  // namespace esp::sync
