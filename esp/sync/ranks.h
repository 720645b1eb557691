// The other copies, as a strategy talks to them: collectives that may be started and waited for, in one order, with the
// time spent waiting counted. A rank that is alone has nobody to wait for: every call is then done at once, in place.
//
// One thread. The communicator is lent. Who goes while something is under way (an error in mid-step) ends the group:
// the memory it works on is about to go too.
#pragma once

#include <cstddef>
#include <span>
#include <vector>

#include "esp/comm/communicator.h"
#include "esp/obs/spans.h"
#include "esp/tensor/tensor.h"

namespace esp::sync {

class Ranks {
 public:
  struct Options {
    bool ordered = false;  // sums in rank order for every element, whatever the cut
    Duration timeout = std::chrono::minutes(10);
    obs::TraceRow* trace = nullptr;
  };
  Ranks(comm::Communicator* comm, const Options& options) : comm_(comm), options_(options) {}
  ~Ranks();
  Ranks(const Ranks&) = delete;
  Ranks& operator=(const Ranks&) = delete;

  int rank() const { return comm_ ? comm_->rank() : 0; }
  int size() const { return comm_ ? comm_->size() : 1; }
  comm::Communicator* comm() const { return comm_; }
  void talk_to(comm::Communicator* comm) { comm_ = comm; }  // from now on; nothing is under way
  comm::Chunk chunk(int64_t count) const { return comm::chunk_of(static_cast<size_t>(count), size(), rank()); }

  // In place, over the flat tensor `all`: sums of everything; of this rank's chunk; everybody's chunks everywhere.
  Work start_all_reduce(const tensor::Tensor& all);
  Work start_reduce_scatter(const tensor::Tensor& all);
  Work start_all_gather(const tensor::Tensor& all);
  // This rank's chunk into a tensor of the whole.
  Work start_all_gather(const tensor::Tensor& chunk, const tensor::Tensor& all);

  Work start_group(std::span<const comm::Call> calls);  // not where this rank is alone

  void wait(const Work& work, const char* what);  // counted as exposed
  double exposed_ms() const { return exposed_ms_; }
  void forget_times() { exposed_ms_ = 0; }

 private:
  Work start(comm::Op op, const void* in, void* out, const tensor::Tensor& all);

  comm::Communicator* comm_;
  Options options_;
  std::vector<Work> started_;  // those that may be under way
  double exposed_ms_ = 0;
};

}  // namespace esp::sync
