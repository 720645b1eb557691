// The ranks that divide the experts, as the exchange of rows talks to them: irregular all-to-alls of rows, started and
// waited for, with the time spent waiting counted.
//
// What is under way holds its tensors, so an error in mid-step leaves nobody writing to memory that has gone; a post
// that goes while something is under way ends the group. One thread; the communicator is lent.
#pragma once

#include <memory>
#include <vector>

#include "esp/comm/communicator.h"
#include "esp/obs/spans.h"
#include "esp/tensor/tensor.h"

namespace esp::parallel {

// Rows to and from every rank, in the order of ranks, without gaps.
struct RowCounts {
  std::vector<size_t> to, from;

  RowCounts turned() const { return {from, to}; }
};

class Post {
 public:
  Post(comm::Communicator& comm, Duration timeout, obs::TraceRow* trace)
      : comm_(comm), timeout_(timeout), trace_(trace) {}
  ~Post();
  Post(const Post&) = delete;
  Post& operator=(const Post&) = delete;

  int rank() const { return comm_.rank(); }
  int size() const { return comm_.size(); }

  // Rows of `in` to their ranks, theirs into `out`.
  Work start(const tensor::Tensor& in, const tensor::Tensor& out, const RowCounts& counts);
  // Equal blocks of `in` to the ranks, theirs into `out`; done on return.
  void trade(const tensor::Tensor& in, const tensor::Tensor& out);
  void wait(const Work& work, const char* what);

  double exposed_ms() const { return exposed_ms_; }
  void forget_times() { exposed_ms_ = 0; }

 private:
  struct Flight {
    Work work;
    tensor::Tensor in, out;
    std::vector<size_t> numbers[4];  // what the call's spans point at: counts and offsets, out and in
  };
  void forget_done();

  comm::Communicator& comm_;
  const Duration timeout_;
  obs::TraceRow* const trace_;
  std::vector<std::unique_ptr<Flight>> flights_;  // that may be under way
  double exposed_ms_ = 0;
};

}  // namespace esp::parallel
