// ExpertCommunicator: all-to-alls of rows among the ranks that shard the experts; the number of rows may differ per
// peer. Start and wait are separate calls; the time spent waiting is counted.
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

// Number of rows sent to and received from each rank; rows are in rank order without gaps.
struct RowCounts {
  std::vector<size_t> to, from;

  RowCounts reversed() const { return {from, to}; }
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

  // Starts sending the rows of `in` to their ranks and receiving into `out`.
  Work start(const tensor::Tensor& in, const tensor::Tensor& out, const RowCounts& counts);
  // Blocking all-to-all of equal blocks.
  void run_all_to_all(const tensor::Tensor& in, const tensor::Tensor& out);
  void wait(const Work& work, const char* what);

  double exposed_ms() const { return exposed_ms_; }
  void reset_times() { exposed_ms_ = 0; }

 private:
  struct PendingExchange {
    Work work;
    tensor::Tensor in, out;
    // arrays that the spans of the call point to: counts and offsets, sent and received
    std::vector<size_t> numbers[4];
  };
  void release_completed();

  comm::Communicator& comm_;
  const Duration timeout_;
  obs::TraceRow* const trace_;
  std::vector<std::unique_ptr<PendingExchange>> pending_;  // may be in flight
  double exposed_ms_ = 0;
};

}  // namespace esp::parallel
