// One parameter server: its range of the elements, the pushes of the workers, and the rules for answering pulls.
//
// Synchronous: a partition is combined when all W workers have pushed it, in worker order and not in the order of
// arrival. If servers update, the caller runs the optimizer once all partitions are combined, then calls `publish`. If
// workers update, the sum of a partition is sent to all workers.
//
// Asynchronous: a worker's step is applied when all of its pushes have arrived, with learning rate lr/W, so that W
// steps move the weights as far as one synchronous step. A pull is answered with a consistent version of the weights:
// those after `version` pushes.
//
// Stale-synchronous: as asynchronous, and a pull for clock c waits until c − min(clocks) ≤ s. In a replay, pushes and
// pulls wait for their turn in the recorded order. (Li et al. 2014; Ho et al. 2013.)
//
// Memory: the weights, an accumulator, and one range per worker for its pushes and pulls. The server has no thread;
// only one thread may call it at a time.
#pragma once

#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <vector>

#include "esp/optim/optimizer.h"
#include "esp/sync/ps/application_order.h"
#include "esp/sync/ps/combine.h"
#include "esp/sync/ps/layout.h"
#include "esp/sync/ps/message.h"
#include "esp/sync/ps/ps_compression.h"

namespace esp::sync {

class ShardServer {
 public:
  struct Options {
    PsOptions ps;  // its mode is not ssp with staleness 0: make_ps turns that into sync
    DType storage = DType::f32, wire = DType::f32;
    PsCompression* compression = nullptr;  // not owned; null without compression
  };
  // Sends a message to a worker. The payload must not change until the worker has processed it.
  using Send = std::function<void(int worker, const Message& message, const void* payload, int urgency)>;
  ShardServer(const ServerLayout& layout, int index, const tensor::Context& context, const Options& options, Send send);

  const tensor::Tensor& values() const { return values_; }  // the weights of the server's range, flat
  const tensor::Tensor& grads() const { return grads_; }
  int64_t first() const { return first_; }  // index of the range's first element, counted over all units
  int index() const { return index_; }
  // The receive buffer of a worker's uncompressed pushes. With ef21: the estimate of the worker's gradient, to which
  // decoded changes are added.
  const tensor::Tensor& range(int worker) const { return workers_[static_cast<size_t>(worker)].range; }
  // The optimizer that applies pushes in asynchronous modes; not owned.
  void set_optimizer(optim::Optimizer* optimizer) { optimizer_ = optimizer; }
  void begin_at(int64_t step);  // sets the step of the weights and of every worker

  std::byte* receive_buffer(int worker, const Message& message);  // returns the receive buffer of a push
  void arrived(int worker, const Message& message);
  // asynchronous modes: while paused, no push is applied and the caller may read weights and state
  void pause(bool paused);
  void publish();  // synchronous mode: sends the current weights as those of the next step

  bool aggregated() const { return num_combined_ == static_cast<int>(partitions_.size()); }
  int64_t step() const { return step_; }  // synchronous mode: the step whose gradients are arriving
  int64_t slowest() const;                // asynchronous modes: number of steps that the slowest worker has finished
  int64_t stop() const { return stop_; }

  int64_t version() const { return version_; }                                // number of pushes applied
  const std::map<int64_t, int64_t>& staleness() const { return staleness_; }  // number of applied pushes by staleness
  // largest distance in steps between the fastest and the slowest worker
  int64_t largest_gap() const { return largest_gap_; }
  const std::vector<OrderEvent>& order() const { return order_; }

 private:
  struct WorkerState {
    tensor::Tensor range;
    tensor::Tensor encoded_pushes;  // compressed pushes, as they arrived
    tensor::Tensor send_buffer;     // the weights that are sent to this worker; aliases `range` without compression
    int num_pushed = 0;             // number of partitions that the worker has pushed in the current step
    std::vector<bool> pushed;       // [partition of this server]: the worker has pushed it
    int64_t clock = 0;              // number of the worker's steps that are applied
    int64_t read_version = 0;       // version of the weights that the worker's last pull returned
    int64_t granted = 0;            // the latest step whose weights the worker has; it may have begun that step
    std::optional<Message> apply, pull;
  };
  bool asynchronous() const { return options_.ps.mode != "sync"; }
  size_t place_of(const Message& message) const;
  void combine_partition(size_t place);
  void send_values(int worker, const void* from, DType type, int64_t version);
  void settle();
  bool can_answer(int worker) const;
  void apply_push(int worker);
  void answer_pull(int worker);
  std::byte* at(const tensor::Tensor& range, size_t place, DType type) const;
  std::byte* code_at(const WorkerState& worker, size_t place) const {
    return worker.encoded_pushes.as<std::byte>() + code_at_[place];
  }

  const ServerLayout& layout_;
  const int index_;
  const tensor::Context context_;
  const Options options_;
  const Aggregate aggregate_;
  Send send_;
  const std::vector<int> partitions_;
  const int64_t first_;
  tensor::Tensor values_, grads_, sums_;  // sums_: in the wire type; used if workers update or the wire type differs
  std::vector<WorkerState> workers_;
  std::vector<size_t> code_at_;  // [partition of this server]: offset of its encoded push in bytes
  std::vector<int> num_pushes_;  // synchronous mode: [partition of this server]: number of workers that have pushed it
  std::vector<const void*> sources_;
  int num_combined_ = 0;
  bool paused_ = false;
  optim::Optimizer* optimizer_ = nullptr;
  int64_t step_ = 0, version_ = 0, stop_ = 0, largest_gap_ = 0;
  std::map<int64_t, int64_t> staleness_;
  std::vector<OrderEvent> order_, replay_;
  size_t replayed_ = 0;
};

}  // namespace esp::sync
