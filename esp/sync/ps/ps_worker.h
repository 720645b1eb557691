// One rank of a job with parameter servers: a communication thread that sends pushed gradients, receives pulled
// weights, and runs the server of this rank, if it has one.
//
// The training thread submits commands and waits; the communication thread owns everything else, including transport
// and server. Every wait has a deadline. An error on the communication thread (a lost peer, an invalid message) is
// thrown by the next command or wait. Between two synchronisations the communication thread owns the server's memory;
// after one, no message is in flight and the training thread may read it.
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
    const ServerLayout* layout = nullptr;  // borrowed
    PsOptions ps;
    DType storage = DType::f32, wire = DType::f32;
    tensor::Context context;  // of the server; the server computes on the communication thread
    int rank = 0;
    Duration timeout = std::chrono::minutes(10);
    // Called on the communication thread, workers only: the send buffer of a partition's gradients, the receive buffer
    // of its weights, and the notification that the weights arrived.
    std::function<const void*(int partition)> gradients;
    std::function<std::byte*(int partition)> receive_buffer;
    std::function<void(int partition)> received;
    PsCompression* compression = nullptr;  // borrowed; null: no compression
  };
  PsWorker(const Setup& setup, std::unique_ptr<net::Transport> transport);
  // Waits until every peer has sent its goodbye; during stack unwinding it does not wait.
  ~PsWorker();

  ShardServer* server() { return server_.get(); }  // null: no server on this rank

  void begin_at(int64_t step);                 // requires that no message is in flight
  void push(int partition);                    // its gradients are ready and stay valid until the end of the step
  void push(std::span<const int> partitions);  // submits all before the first is sent
  void end_step(double lr, double factor, bool skip);  // asynchronous: the server applies what was pushed
  void pull(bool now, bool stop_requested);            // asynchronous: requests the weights of the next step
  void pause(bool paused);                             // asynchronous: pauses the server of this rank
  void publish();                                      // synchronous: the server of this rank has stepped
  void next_step() { ++step_; }

  int64_t step() const { return step_; }
  // Wait, in step `step()`, for the weights of a unit (-1: of all), for the delivery of all pushes, for the gradients
  // of all workers, and for the end of the step on every worker.
  void wait_values(int unit = -1);
  void wait_pushed();
  void wait_gathered();
  void wait_everyone();
  int64_t stop();  // the step before which all ranks stop; 0: none

  struct Counts {
    uint64_t pushed_bytes = 0, pulled_bytes = 0;  // of this worker, including the server of the same rank
    MessageQueue::Counts post;
    net::Traffic traffic;
    std::vector<int> pushed, received;  // partitions in the order of the last step
  };
  Counts counts() const;
  std::string_view transport() const { return messages_->transport(); }
  double exposed_ms() const { return exposed_ms_; }
  void reset_times() { exposed_ms_ = 0; }
  void set_trace(obs::TraceRow* trace) { trace_ = trace; }

 private:
  struct Command {
    enum class Kind : uint8_t { push, end_step, pull, publish, pause, begin_at, goodbye } kind;
    int partition = 0;
    Message message;
  };
  void submit(const Command& order);
  void wait_executed();
  template <typename F>
  void wait(const char* what, F&& holds, const std::function<std::string()>& missing);
  void run();
  void run_until_goodbye();
  bool execute();
  void execute(const Command& order);
  void push_ready();
  int64_t push_bytes(int partition) const;
  void arrived(int peer, const Message& message);
  void tell();

  const Setup setup_;
  const bool works_;
  std::unique_ptr<ShardServer> server_;
  std::unique_ptr<MessageQueue> messages_;
  // Owned by the communication thread:
  PushQueue queue_;
  std::vector<Command> taken_;
  int64_t pushing_step_ = -1;
  int num_goodbyes_ = 0;
  bool goodbye_requested_ = false, goodbye_sent_ = false;
  Clock::time_point give_up_, last_command_;
  // Owned by the training thread:
  int64_t step_ = 0;
  double exposed_ms_ = 0;
  obs::TraceRow* trace_ = nullptr;

  mutable std::mutex mutex_;  // guards all below
  std::condition_variable changed_;
  std::vector<Command> commands_;
  std::vector<int64_t> versions_;  // by partition: the step of its weights
  int64_t gathered_ = 0, slowest_ = 0, stop_ = 0;
  bool pushing_ = false;
  Counts counts_;
  std::exception_ptr failed_;

  std::thread thread_;  // last member: starts after all others are initialised
};

}  // namespace esp::sync
