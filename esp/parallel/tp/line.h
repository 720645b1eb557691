// The ranks of one axis, as regions talk to them: collectives on tensors, in one order, with the time spent waiting
// counted. Whoever is alone on the axis has no line.
//
// `run_…` works on the caller's thread and is done on return, `start_…` on the communicator's own. What is under way
// holds its tensors, so an error in mid-step leaves nobody writing to memory that has gone; a line that goes while
// something is under way ends the group. One thread; the communicator is lent.
#pragma once

#include <vector>

#include "esp/comm/communicator.h"
#include "esp/obs/spans.h"
#include "esp/tensor/tensor.h"

namespace esp::parallel {

class Line {
 public:
  Line(comm::Communicator& comm, Duration timeout, obs::TraceRow* trace)
      : comm_(comm), timeout_(timeout), trace_(trace) {}
  ~Line();
  Line(const Line&) = delete;
  Line& operator=(const Line&) = delete;

  int rank() const { return comm_.rank(); }
  int size() const { return comm_.size(); }
  comm::Communicator& comm() const { return comm_; }

  // Sums (or what `reduce` says) of everybody's `x`, in place.
  void run_all_reduce(const tensor::Tensor& x, comm::ReduceOp reduce = comm::ReduceOp::sum);
  Work start_all_reduce(const tensor::Tensor& x);
  // Everybody's equal parts, in the order of ranks.
  void run_gather(const tensor::Tensor& part, const tensor::Tensor& all);
  Work start_gather(const tensor::Tensor& part, const tensor::Tensor& all);
  // The sums of this rank's part of `all`.
  void run_scatter(const tensor::Tensor& all, const tensor::Tensor& part);
  Work start_scatter(const tensor::Tensor& all, const tensor::Tensor& part);

  void wait(const Work& work, const char* what);  // counted as exposed
  double exposed_ms() const { return exposed_ms_; }
  void forget_times() { exposed_ms_ = 0; }

 private:
  struct Flight {
    Work work;
    tensor::Tensor in, out;
  };
  void forget_done();
  void run(comm::Op op, const tensor::Tensor& in, const tensor::Tensor& out, comm::ReduceOp reduce);
  Work start(comm::Op op, const tensor::Tensor& in, const tensor::Tensor& out);

  comm::Communicator& comm_;
  const Duration timeout_;
  obs::TraceRow* const trace_;
  std::vector<Flight> flights_;  // that may be under way
  double exposed_ms_ = 0;
};

}  // namespace esp::parallel
