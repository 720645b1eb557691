// The context-parallel group: the ranks that share a sequence.
//
// A ContextGroup is a value, created per call. The communicator and the pointers are borrowed and outlive the tape's
// step, because backward communicates with the same ranks. All ranks call in the same order, including recomputation.
#pragma once

#include <vector>

#include "esp/comm/communicator.h"
#include "esp/obs/spans.h"
#include "esp/parallel/cp/tokens.h"

namespace esp::parallel {

struct ContextGroup {
  comm::Communicator* comm = nullptr;  // null: a group of one
  ContextLayout layout = ContextLayout::zigzag;
  int64_t length = 0;  // tokens of the whole sequence
  Duration timeout = std::chrono::minutes(10);
  obs::TraceRow* trace = nullptr;  // spans of waits
  double* waited_ms = nullptr;     // total of waits

  int rank() const { return comm ? comm->rank() : 0; }
  int size() const { return comm ? comm->size() : 1; }
  nn::TokenMap tokens(int of_rank) const { return context_tokens(layout, length, size(), of_rank); }
};

// Calls in flight on a group's communicator. Destroying it while calls are in flight (an error mid-step) aborts the
// group, because their buffers are about to be freed.
class PendingCalls {
 public:
  explicit PendingCalls(const ContextGroup& group) : group_(group) {}
  ~PendingCalls();
  PendingCalls(const PendingCalls&) = delete;
  PendingCalls& operator=(const PendingCalls&) = delete;

  // Sends `out` to the next rank of the ring while receiving `in` from the previous one. Zero elements send nothing.
  Work start_exchange(const void* out, int64_t out_count, void* in, int64_t in_count, DType dtype);
  void run_all_to_all(const void* in, const std::vector<size_t>& send_counts, void* out,
                      const std::vector<size_t>& recv_counts, DType dtype);  // packed, in order of the ranks
  void wait(const Work& work, const char* what);

 private:
  const ContextGroup& group_;
  std::vector<Work> started_;
};

}  // namespace esp::parallel
