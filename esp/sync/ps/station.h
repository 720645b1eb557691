// One rank's place in a job with parameter servers: a thread that sends what its worker pushes, takes in the values it
// pulls, and runs the server that stands here, if one does.
//
// The worker's thread gives orders and waits; everything else, the transport and the server included, belongs to the
// station's thread. Every wait has a deadline, and what went wrong on the station's thread (a peer lost, a message that
// makes no sense) is thrown by the next order or wait. Between two meetings of all ranks the server's memory is the
// station's; after one, nothing moves and it may be read.
#pragma once

#include <condition_variable>
#include <functional>
#include <mutex>
#include <span>
#include <thread>

#include "esp/obs/spans.h"
#include "esp/sync/ps/post.h"
#include "esp/sync/ps/push_queue.h"
#include "esp/sync/ps/server.h"

namespace esp::sync {

class Station {
 public:
  struct Setup {
    const ServerLayout* layout = nullptr;  // lent
    PsOptions ps;
    DType storage = DType::f32, wire = DType::f32;
    tensor::Context context;  // of the server: no threads but the station's own
    int rank = 0;
    Duration timeout = std::chrono::minutes(10);
    // On the station's thread: where a partition's gradients lie as they travel, and where what comes back goes. Only
    // of workers.
    std::function<const void*(int partition)> gradients;
    std::function<std::byte*(int partition)> landing;
    std::function<void(int partition)> landed;
    PsCodes* codes = nullptr;  // lent; null: everything travels as values
  };
  Station(const Setup& setup, std::unique_ptr<net::Transport> transport);
  // In order: waits until all have said goodbye. While an exception is on its way: at once.
  ~Station();

  ShardServer* server() { return server_.get(); }  // null: none is here

  void begin_at(int64_t step);                         // nothing is under way
  void push(int partition);                            // its gradients are ready; they stay until the step is over
  void push(std::span<const int> partitions);          // all at once: none leaves before all are known
  void end_step(double lr, double factor, bool skip);  // one by one: what was pushed is to be applied
  void pull(bool now, bool wants_stop);                // one by one: the values for the next step
  void hold(bool held);                                // one by one: the server here applies nothing from now on
  void publish();                                      // synchronous: the server here has stepped
  void next_step() { ++step_; }

  int64_t step() const { return step_; }
  // Of step `step()`: values of a unit, or of all; the gradients of all workers; every worker's end of it.
  void wait_values(int unit = -1);
  void wait_pushed();  // whatever was pushed has arrived
  void wait_gathered();
  void wait_everyone();
  int64_t stop();  // before which all stop; 0: none is known

  struct Counts {
    uint64_t pushed_bytes = 0, pulled_bytes = 0;  // by this worker, also where the server is here
    Post::Counts post;
    net::Traffic traffic;
    std::vector<int> pushed, landed;  // partitions in the order of the last step
  };
  Counts counts() const;
  std::string_view transport() const { return post_->transport(); }
  double exposed_ms() const { return exposed_ms_; }
  void forget_times() { exposed_ms_ = 0; }
  void set_trace(obs::TraceRow* trace) { trace_ = trace; }

 private:
  struct Order {
    enum class Kind : uint8_t { push, end_step, pull, publish, hold, begin_at, leave } kind;
    int partition = 0;
    Message message;
  };
  void give(const Order& order);
  void wait_obeyed();
  template <typename F>
  void wait(const char* what, F&& holds, const std::function<std::string()>& missing);
  void run();
  void work_until_left();
  bool obey();
  void obey(const Order& order);
  void push_ready();
  int64_t push_bytes(int partition) const;
  void arrived(int peer, const Message& message);
  void tell();

  const Setup setup_;
  const bool works_;
  std::unique_ptr<ShardServer> server_;
  std::unique_ptr<Post> post_;
  // The station's thread:
  PushQueue queue_;
  std::vector<Order> taken_;
  int64_t pushing_step_ = -1;
  int num_goodbyes_ = 0;
  bool leaving_ = false, said_goodbye_ = false;
  Clock::time_point give_up_, last_order_;
  // The worker's thread:
  int64_t step_ = 0;
  double exposed_ms_ = 0;
  obs::TraceRow* trace_ = nullptr;

  mutable std::mutex mutex_;  // guards all below
  std::condition_variable changed_;
  std::vector<Order> orders_;
  std::vector<int64_t> versions_;  // by partition: the step its values are for
  int64_t gathered_ = 0, slowest_ = 0, stop_ = 0;
  bool pushing_ = false;
  Counts counts_;
  std::exception_ptr failed_;

  std::thread thread_;  // last: everything is there when it begins
};

}  // namespace esp::sync
