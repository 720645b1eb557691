// One server: its range of the elements, what workers have pushed of it, and the rules by which it answers.
//
// Synchronous: a partition is combined when all W pushes of it are in, in worker order whatever came first. Where
// servers step, whoever drives the server does so once all partitions are combined and then calls `publish`; where
// workers step, a partition's sum goes to all of them at once.
// Asynchronous: what a worker pushed is applied when all of it is in, at rate lr/W, so that W pushes move as far as one
// synchronous step; a pull is answered with the values of one moment, those of `version` pushes. Stale-synchronous: and
// a pull for clock c waits until c − min(clocks) ≤ s. Replaying, pushes and pulls wait for their turn in the order
// recorded. (Li et al. 2014; Ho et al. 2013.)
//
// Memory: the values, an accumulator, and one range per worker, in which its pushes land and its pulls leave. No thread
// of its own: one at a time may call.
#pragma once

#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <vector>

#include "esp/optim/optimizer.h"
#include "esp/sync/ps/codes.h"
#include "esp/sync/ps/combine.h"
#include "esp/sync/ps/layout.h"
#include "esp/sync/ps/message.h"
#include "esp/sync/ps/order.h"

namespace esp::sync {

class ShardServer {
 public:
  struct Options {
    PsOptions ps;  // mode ssp with staleness 0 is sync by then
    DType storage = DType::f32, wire = DType::f32;
    PsCodes* codes = nullptr;  // lent; null: pushes and sums are values
  };
  // To the worker, with a payload that stays until the worker has acted on it.
  using Send = std::function<void(int worker, const Message& message, const void* payload, int urgency)>;
  ShardServer(const ServerLayout& layout, int index, const tensor::Context& context, const Options& options, Send send);

  const tensor::Tensor& values() const { return values_; }  // flat, of its range
  const tensor::Tensor& grads() const { return grads_; }
  int64_t first() const { return first_; }  // its first element
  int index() const { return index_; }
  // Where a worker's pushes land as values; with ef21, the estimate of it that codes move.
  const tensor::Tensor& range(int worker) const { return workers_[static_cast<size_t>(worker)].range; }
  // Who applies pushes that come one by one; lent.
  void set_optimizer(optim::Optimizer* optimizer) { optimizer_ = optimizer; }
  void begin_at(int64_t step);  // workers and values are at this step

  std::byte* landing(int worker, const Message& message);  // of a push
  void arrived(int worker, const Message& message);
  void hold(bool held);  // one by one: while held nothing is applied, and values and state may be read
  void publish();        // synchronous: the values as they are now are those of the next step

  bool aggregated() const { return num_combined_ == static_cast<int>(partitions_.size()); }
  int64_t step() const { return step_; }  // synchronous: the one being gathered
  int64_t slowest() const;                // one by one: clocks that every worker has finished
  int64_t stop() const { return stop_; }

  int64_t version() const { return version_; }                                // pushes applied
  const std::map<int64_t, int64_t>& staleness() const { return staleness_; }  // of pushes applied
  int64_t largest_gap() const { return largest_gap_; }  // between a worker that began and the slowest
  const std::vector<OrderEvent>& order() const { return order_; }

 private:
  struct WorkerState {
    tensor::Tensor range;
    tensor::Tensor codes;      // pushes as they arrive, where they are codes
    tensor::Tensor leaving;    // the values it pulls; `range` itself where pushes are not codes
    int num_pushed = 0;        // partitions of the step under way
    std::vector<bool> pushed;  // by place among the server's partitions
    int64_t clock = 0;         // steps applied
    int64_t read_version = 0;  // when it last pulled
    int64_t granted = 0;       // the last clock it may have begun
    std::optional<Message> apply, pull;
  };
  bool one_by_one() const { return options_.ps.mode != "sync"; }
  size_t place_of(const Message& message) const;
  void combine_partition(size_t place);
  void send_values(int worker, const void* from, DType type, int64_t version);
  void settle();
  bool may_answer(int worker) const;
  void apply_push(int worker);
  void answer_pull(int worker);
  std::byte* at(const tensor::Tensor& range, size_t place, DType type) const;
  std::byte* code_at(const WorkerState& worker, size_t place) const {
    return worker.codes.as<std::byte>() + code_at_[place];
  }

  const ServerLayout& layout_;
  const int index_;
  const tensor::Context context_;
  const Options options_;
  const Aggregate aggregate_;
  Send send_;
  const std::vector<int> partitions_;
  const int64_t first_;
  tensor::Tensor values_, grads_, sums_;  // sums: as they travel, where workers step or another type does
  std::vector<WorkerState> workers_;
  std::vector<size_t> code_at_;  // by place
  std::vector<int> num_pushes_;  // synchronous: by place
  std::vector<const void*> sources_;
  int num_combined_ = 0;
  bool held_ = false;
  optim::Optimizer* optimizer_ = nullptr;
  int64_t step_ = 0, version_ = 0, stop_ = 0, largest_gap_ = 0;
  std::map<int64_t, int64_t> staleness_;
  std::vector<OrderEvent> order_, replay_;
  size_t replayed_ = 0;
};

}  // namespace esp::sync
