// ExpertCommunicator: irregular all-to-alls of rows among the ranks that shard the experts. Started and waited for
// separately; counts the time spent waiting.
//
// Pending exchanges own their tensors, so an error mid-step cannot free memory that is being written. Destruction with
// a pending exchange aborts the group. One thread; the communicator is borrowed.
#pragma once

#include <memory>
#include <vector>

#include "esp/comm/communicator.h"
#include "esp/obs/spans.h"
#include "esp/tensor/tensor.h"

namespace esp::parallel {

// Rows to and from every rank, in rank order, without gaps.
struct RowCounts {
  std::vector<size_t> to, from;

  RowCounts turned() const { return {from, to}; }
};

class ExpertCommunicator {
 public:
  ExpertCommunicator(comm::Communicator& comm, Duration timeout, obs::TraceRow* trace)
      : comm_(comm), timeout_(timeout), trace_(trace) {}
  ~ExpertCommunicator();
  ExpertCommunicator(const ExpertCommunicator&) = delete;
  ExpertCommunicator& operator=(const ExpertCommunicator&) = delete;

  int rank() const { return comm_.rank(); }
  int size() const { return comm_.size(); }

  // Sends the rows of `in` to their ranks and receives into `out`.
  Work start(const tensor::Tensor& in, const tensor::Tensor& out, const RowCounts& counts);
  // All-to-all of equal blocks; blocking.
  void trade(const tensor::Tensor& in, const tensor::Tensor& out);
  void wait(const Work& work, const char* what);

  double exposed_ms() const { return exposed_ms_; }
  void reset_times() { exposed_ms_ = 0; }

 private:
  struct PendingExchange {
    Work work;
    tensor::Tensor in, out;
    std::vector<size_t> numbers[4];  // counts and offsets the call's spans point at, out and in
  };
  void forget_done();

  comm::Communicator& comm_;
  const Duration timeout_;
  obs::TraceRow* const trace_;
  std::vector<std::unique_ptr<PendingExchange>> pending_;  // may be in flight
  double exposed_ms_ = 0;
};

}  // namespace esp::parallel
