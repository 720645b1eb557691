// Compression of pushes and sums (sync.compress): one OneDirectionalCompression per partition. The sender stores the
// residual.
//
// Push: a worker encodes the gradients of a partition, in f32, and the server decodes them into the range of that
// worker. With ef21 that range is the estimate of the worker's gradient, and the decoded change is added to it. Sum (if
// workers update): with doublesqueeze and neolithic the server encodes the sum of all pushes and stores its residual;
// otherwise sums and weights are sent uncompressed.
//
// Encoding a push runs on the training thread; everything else runs on the communication thread. Both may run
// concurrently.
#pragma once

#include <memory>
#include <vector>

#include "esp/sync/compress/strategy_compression.h"
#include "esp/sync/ps/layout.h"

namespace esp::sync {

class PsCompression {
 public:
  // the objects in the setup are not owned
  PsCompression(const Setup& setup, const ServerLayout& layout, int rank);

  size_t push_bytes(int partition) const { return up_[at(partition)]->encoded_bytes(); }
  bool compresses_sums() const { return !down_.empty(); }
  size_t sum_bytes(int partition) const { return down_[at(partition)]->encoded_bytes(); }
  bool estimates() const { return up_.front()->adds(); }

  // Encodes the gradients of a partition into this worker's send buffer.
  void encode_push(int partition, const void* gradients, int64_t step);
  const std::byte* push_code(int partition) const { return encoded_pushes_.as<std::byte>() + push_at_[at(partition)]; }
  void decode_push(void* y, int partition, int worker, const std::byte* code, int64_t step) const;
  // Encodes the sum of a partition into this server's send buffer, and returns that buffer.
  const std::byte* encode_sum(int partition, const void* sum, int64_t step);
  std::byte* sum_receive_buffer(int partition) const { return encoded_sums_.as<std::byte>() + sum_at_[at(partition)]; }
  void decode_sum(void* y, int partition, int64_t step) const;

  std::vector<ExtraState> state();
  std::vector<std::string> take_notes() { return compression_.take_notes(); }

 private:
  static size_t at(int partition) { return static_cast<size_t>(partition); }

  StrategyCompression compression_;
  const int rank_;
  // one encoder per partition: up_ for pushes, down_ for sums; down_ is empty if sums are uncompressed
  std::vector<std::unique_ptr<OneDirectionalCompression>> up_, down_;
  std::vector<size_t> push_at_, sum_at_;
  tensor::Tensor encoded_pushes_, encoded_sums_, outgoing_sums_;
};

}  // namespace esp::sync
