// A communicator for strategies: starts asynchronous collectives, waits for them in the same order on every rank, and
// measures the total time spent waiting (exposed communication). With a single rank every call completes at once, in
// place.
//
// All calls come from one thread. The communicator is not owned. Destruction while a collective is in flight (an error
// during a step) aborts the group, because the memory of the collective is about to be freed.
#pragma once

#include <cstddef>
#include <span>
#include <vector>

#include "esp/comm/communicator.h"
#include "esp/obs/spans.h"
#include "esp/tensor/tensor.h"

namespace esp::sync {

class TimedCommunicator {
 public:
  struct Options {
    bool ordered = false;  // true: each element is added in rank order for any chunking
    Duration timeout = std::chrono::minutes(10);
    obs::TraceRow* trace = nullptr;
  };
  TimedCommunicator(comm::Communicator* comm, const Options& options) : comm_(comm), options_(options) {}
  ~TimedCommunicator();
  TimedCommunicator(const TimedCommunicator&) = delete;
  TimedCommunicator& operator=(const TimedCommunicator&) = delete;

  int rank() const { return comm_ ? comm_->rank() : 0; }
  int size() const { return comm_ ? comm_->size() : 1; }
  comm::Communicator* comm() const { return comm_; }
  // replaces the communicator for later calls; no collective may be in flight
  void set_communicator(comm::Communicator* comm) { comm_ = comm; }
  comm::Chunk chunk(int64_t count) const { return comm::chunk_of(static_cast<size_t>(count), size(), rank()); }

  // Sums the flat tensor `all` in place.
  Work start_all_reduce(const tensor::Tensor& all);
  Work start_reduce_scatter(const tensor::Tensor& all);
  Work start_all_gather(const tensor::Tensor& all);
  // Gathers `chunk` of every rank into `all`.
  Work start_all_gather(const tensor::Tensor& chunk, const tensor::Tensor& all);

  Work start_group(std::span<const comm::Call> calls);  // requires at least two ranks

  void wait(const Work& work, const char* what);  // waits for `work`; adds the wait time to exposed_ms
  double exposed_ms() const { return exposed_ms_; }
  void reset_times() { exposed_ms_ = 0; }

 private:
  Work start(comm::Op op, const void* in, void* out, const tensor::Tensor& all);

  comm::Communicator* comm_;
  Options options_;
  std::vector<Work> started_;  // collectives that may be in flight
  double exposed_ms_ = 0;
};

}  // namespace esp::sync
