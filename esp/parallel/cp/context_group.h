// The context-parallel group: the ranks that share a sequence.
//
// A ContextGroup is a value that is created per call. The communicator and the pointers are borrowed. They must outlive
// the tape's step, because backward communicates with the same ranks. All ranks call in the same order, including
// recomputation.
#pragma once

#include <vector>

#include "esp/comm/communicator.h"
#include "esp/obs/spans.h"
#include "esp/parallel/cp/tokens.h"

namespace esp::parallel {

struct ContextGroup {
  comm::Communicator* comm = nullptr;  // null: a group of one rank
  ContextLayout layout = ContextLayout::zigzag;
  int64_t length = 0;  // number of tokens of the whole sequence
  Duration timeout = std::chrono::minutes(10);
  obs::TraceRow* trace = nullptr;  // receives a span for each wait
  double* waited_ms = nullptr;     // accumulates the time spent waiting

  int rank() const { return comm ? comm->rank() : 0; }
  int size() const { return comm ? comm->size() : 1; }
  nn::TokenMap tokens(int of_rank) const { return context_tokens(layout, length, size(), of_rank); }
};

// The pending calls on a group's communicator. If this object is destroyed while calls are in flight (an error
// mid-step), it aborts the group, because the buffers of the calls are about to be freed.
class PendingCalls {
 public:
  explicit PendingCalls(const ContextGroup& group) : group_(group) {}
  ~PendingCalls();
  PendingCalls(const PendingCalls&) = delete;
  PendingCalls& operator=(const PendingCalls&) = delete;

  // Sends `out` to the next rank of the ring while receiving `in` from the previous one. Zero elements send nothing.
  Work start_exchange(const void* out, int64_t out_count, void* in, int64_t in_count, DType dtype);
  // Blocking all-to-all. Data is packed in order of the ranks.
  void run_all_to_all(const void* in, const std::vector<size_t>& send_counts, void* out,
                      const std::vector<size_t>& recv_counts, DType dtype);
  void wait(const Work& work, const char* what);

 private:
  const ContextGroup& group_;
  std::vector<Work> pending_;
};

}  // namespace esp::parallel
