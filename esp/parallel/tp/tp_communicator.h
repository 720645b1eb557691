// TpCommunicator: collectives on tensors among the ranks of the tensor axis, executed in the order of the calls; the
// time spent waiting is counted. An axis of size one has no TpCommunicator.
//
// `run_…` blocks on the caller's thread; `start_…` runs on the communicator's thread. Pending collectives own their
// tensors, so an error mid-step cannot free memory that is being written. Destruction with a pending collective aborts
// the group. Used by one thread; the communicator is borrowed.
#pragma once

#include <vector>

#include "esp/comm/communicator.h"
#include "esp/obs/spans.h"
#include "esp/tensor/tensor.h"

namespace esp::parallel {

class TpCommunicator {
 public:
  TpCommunicator(comm::Communicator& comm, Duration timeout, obs::TraceRow* trace)
      : comm_(comm), timeout_(timeout), trace_(trace) {}
  ~TpCommunicator();
  TpCommunicator(const TpCommunicator&) = delete;
  TpCommunicator& operator=(const TpCommunicator&) = delete;

  int rank() const { return comm_.rank(); }
  int size() const { return comm_.size(); }
  comm::Communicator& comm() const { return comm_; }

  // All-reduce of `x` in place.
  void run_all_reduce(const tensor::Tensor& x, comm::ReduceOp reduce = comm::ReduceOp::sum);
  Work start_all_reduce(const tensor::Tensor& x);
  // All-gather of equal parts, in rank order.
  void run_all_gather(const tensor::Tensor& part, const tensor::Tensor& all);
  Work start_all_gather(const tensor::Tensor& part, const tensor::Tensor& all);
  // Reduce-scatter: `part` receives the sums of this rank's part of `all`.
  void run_reduce_scatter(const tensor::Tensor& all, const tensor::Tensor& part);
  Work start_reduce_scatter(const tensor::Tensor& all, const tensor::Tensor& part);

  void wait(const Work& work, const char* what);  // the wait counts as exposed time
  double exposed_ms() const { return exposed_ms_; }
  void reset_times() { exposed_ms_ = 0; }

 private:
  struct PendingCollective {
    Work work;
    tensor::Tensor in, out;
  };
  void release_completed();
  void run(comm::Op op, const tensor::Tensor& in, const tensor::Tensor& out, comm::ReduceOp reduce);
  Work start(comm::Op op, const tensor::Tensor& in, const tensor::Tensor& out);

  comm::Communicator& comm_;
  const Duration timeout_;
  obs::TraceRow* const trace_;
  std::vector<PendingCollective> pending_;  // may be in flight
  double exposed_ms_ = 0;
};

}  // namespace esp::parallel
