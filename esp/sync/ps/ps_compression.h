// Compression of pushes and sums (sync.compress): one OneDirectionalCompression per partition; error feedback is stored
// at the sender.
//
// Push: a worker's gradients of a partition, in f32; the server decodes them into the worker's range. With ef21 that
// range is the estimate of the worker's gradient, to which the decoded change is added. Pull, with doublesqueeze and
// neolithic where workers update: the sum of all, with error feedback on the server; otherwise sums and weights are
// sent uncompressed.
//
// A worker encodes on the training thread, everything else runs on the communication thread; both may run concurrently.
#pragma once

#include <memory>
#include <vector>

#include "esp/sync/compress/strategy_compression.h"
#include "esp/sync/ps/layout.h"

namespace esp::sync {

class PsCompression {
 public:
  PsCompression(const Setup& setup, const ServerLayout& layout, int rank);  // borrows the setup

  size_t push_bytes(int partition) const { return up_[at(partition)]->code_bytes(); }
  bool of_sums() const { return !down_.empty(); }
  size_t sum_bytes(int partition) const { return down_[at(partition)]->code_bytes(); }
  bool estimates() const { return up_.front()->adds(); }

  // Encodes a worker's partition into its send buffer.
  void encode_push(int partition, const void* gradients, int64_t step);
  const std::byte* push_code(int partition) const { return push_codes_.as<std::byte>() + push_at_[at(partition)]; }
  void decode_push(void* y, int partition, int worker, const std::byte* code, int64_t step) const;
  // Encodes a sum into its send buffer.
  const std::byte* encode_sum(int partition, const void* sum, int64_t step);
  std::byte* sum_receive_buffer(int partition) const { return sum_codes_.as<std::byte>() + sum_at_[at(partition)]; }
  void decode_sum(void* y, int partition, int64_t step) const;

  std::vector<ExtraState> state();
  std::vector<std::string> take_notes() { return compression_.take_notes(); }

 private:
  static size_t at(int partition) { return static_cast<size_t>(partition); }

  StrategyCompression compression_;
  const int rank_;
  std::vector<std::unique_ptr<OneDirectionalCompression>> up_,
      down_;  // by partition; down_: empty where sums are uncompressed
  std::vector<size_t> push_at_, sum_at_;
  tensor::Tensor push_codes_, sum_codes_, leaving_sums_;
};

}  // namespace esp::sync
