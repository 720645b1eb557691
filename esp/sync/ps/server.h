// One parameter server: its range of the elements, the pushes of the workers, and the rules for answering.
//
// Synchronous: a partition is combined when all W pushes of it have arrived, in worker order independent of arrival.
// Where servers update, the caller runs the optimizer once all partitions are combined and then calls `publish`; where
// workers update, a partition's sum is sent to all of them.
// Asynchronous: a worker's step is applied when all of its pushes have arrived, at rate lr/W, so that W steps move as
// far as one synchronous step; a pull is answered with a consistent version of the weights (after `version` pushes).
// Stale-synchronous: in addition a pull for clock c waits until c − min(clocks) ≤ s. In a replay, pushes and pulls wait
// for their turn in the recorded order. (Li et al. 2014; Ho et al. 2013.)
//
// Memory: the weights, an accumulator, and one range per worker for its pushes and pulls. No thread of its own; one
// caller at a time.
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
    PsOptions ps;  // ssp with staleness 0 was replaced by sync
    DType storage = DType::f32, wire = DType::f32;
    PsCompression* compression = nullptr;  // borrowed; null: no compression
  };
  // Sends to the worker; the payload must stay unchanged until the worker has processed it.
  using Send = std::function<void(int worker, const Message& message, const void* payload, int urgency)>;
  ShardServer(const ServerLayout& layout, int index, const tensor::Context& context, const Options& options, Send send);

  const tensor::Tensor& values() const { return values_; }  // flat, the server's range
  const tensor::Tensor& grads() const { return grads_; }
  int64_t first() const { return first_; }  // its first element
  int index() const { return index_; }
  // Receive buffer of a worker's uncompressed pushes; with ef21, the estimate to which decoded changes are added.
  const tensor::Tensor& range(int worker) const { return workers_[static_cast<size_t>(worker)].range; }
  // Applies pushes in asynchronous modes; borrowed.
  void set_optimizer(optim::Optimizer* optimizer) { optimizer_ = optimizer; }
  void begin_at(int64_t step);  // workers and weights are at this step

  std::byte* receive_buffer(int worker, const Message& message);  // receive buffer of a push
  void arrived(int worker, const Message& message);
  void pause(bool paused);  // asynchronous: while held no push is applied, and weights and state may be read
  void publish();           // synchronous: the current weights are those of the next step

  bool aggregated() const { return num_combined_ == static_cast<int>(partitions_.size()); }
  int64_t step() const { return step_; }  // synchronous: the step being gathered
  int64_t slowest() const;                // asynchronous: clocks finished by every worker
  int64_t stop() const { return stop_; }

  int64_t version() const { return version_; }                                // pushes applied
  const std::map<int64_t, int64_t>& staleness() const { return staleness_; }  // of pushes applied
  int64_t largest_gap() const { return largest_gap_; }  // between the fastest and the slowest worker
  const std::vector<OrderEvent>& order() const { return order_; }

 private:
  struct WorkerState {
    tensor::Tensor range;
    tensor::Tensor encoded_pushes;  // pushes as received, with compression
    tensor::Tensor send_buffer;     // the weights to send; aliases `range` without compression
    int num_pushed = 0;             // partitions of the current step
    std::vector<bool> pushed;       // by partition index of this server
    int64_t clock = 0;              // steps applied
    int64_t read_version = 0;       // version of its last pull
    int64_t granted = 0;            // the last clock it may have begun
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
  tensor::Tensor values_, grads_, sums_;  // sums_: in wire type, where workers update or the wire type differs
  std::vector<WorkerState> workers_;
  std::vector<size_t> code_at_;  // by partition index of this server
  std::vector<int> num_pushes_;  // synchronous: by partition index of this server
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
