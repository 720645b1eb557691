// The ranks that share a sequence, as attention talks to them.
//
// A ContextGroup is a value, made for every call; the communicator and what the pointers point at are lent and outlive
// the tape's step, because backward talks to the same ranks again. Every rank calls in the same order, recomputation
// included.
#pragma once

#include <vector>

#include "esp/comm/communicator.h"
#include "esp/obs/spans.h"
#include "esp/parallel/cp/tokens.h"

namespace esp::parallel {

struct ContextGroup {
  comm::Communicator* comm = nullptr;  // null: alone
  ContextLayout layout = ContextLayout::zigzag;
  int64_t length = 0;  // tokens of the whole sequence
  Duration timeout = std::chrono::minutes(10);
  obs::TraceRow* trace = nullptr;  // waiting is drawn here
  double* waited_ms = nullptr;     // and added here

  int rank() const { return comm ? comm->rank() : 0; }
  int size() const { return comm ? comm->size() : 1; }
  nn::TokenMap tokens(int of_rank) const { return context_tokens(layout, length, size(), of_rank); }
};

// Calls under way on a group's communicator. Who goes while one is (an error in mid-step) ends the group: the memory it
// works on is about to go too.
class UnderWay {
 public:
  explicit UnderWay(const ContextGroup& group) : group_(group) {}
  ~UnderWay();
  UnderWay(const UnderWay&) = delete;
  UnderWay& operator=(const UnderWay&) = delete;

  // `out` goes to the next rank of the ring while `in` comes from the one before. Nothing is sent of 0 elements.
  Work start_exchange(const void* out, int64_t out_count, void* in, int64_t in_count, DType dtype);
  void run_all_to_all(const void* in, const std::vector<size_t>& send_counts, void* out,
                      const std::vector<size_t>& recv_counts, DType dtype);  // packed, in order of the ranks
  void wait(const Work& work, const char* what);

 private:
  const ContextGroup& group_;
  std::vector<Work> started_;
};

}  // namespace esp::parallel
