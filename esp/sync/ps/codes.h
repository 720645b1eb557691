// What workers push and servers send as codes (sync.compress): a telling per partition (compress/one_way.h), its errors
// on the side that tells.
//
// Up: a worker's gradients of a partition, in f32; the server decodes them into the worker's range. With ef21 that
// range is the worker's estimate, which the code moves. Down, with doublesqueeze and neolithic where workers step: the
// sum of all, whose error the server keeps; else sums and values travel as they are.
//
// A worker encodes on its own thread, everything else is the station's; both may go on at once.
#pragma once

#include <memory>
#include <vector>

#include "esp/sync/compress/compression.h"
#include "esp/sync/ps/layout.h"

namespace esp::sync {

class PsCodes {
 public:
  PsCodes(const Setup& setup, const ServerLayout& layout, int rank);  // what the setup lends outlives it

  size_t push_bytes(int partition) const { return up_[at(partition)]->code_bytes(); }
  bool of_sums() const { return !down_.empty(); }
  size_t sum_bytes(int partition) const { return down_[at(partition)]->code_bytes(); }
  bool estimates() const { return up_.front()->adds(); }

  // A worker's partition into the memory it leaves from.
  void encode_push(int partition, const void* gradients, int64_t step);
  const std::byte* push_code(int partition) const { return push_codes_.as<std::byte>() + push_at_[at(partition)]; }
  void decode_push(void* y, int partition, int worker, const std::byte* code, int64_t step) const;
  // A sum into the memory it leaves from.
  const std::byte* encode_sum(int partition, const void* sum, int64_t step);
  std::byte* sum_landing(int partition) const { return sum_codes_.as<std::byte>() + sum_at_[at(partition)]; }
  void decode_sum(void* y, int partition, int64_t step) const;

  std::vector<Remembered> state();
  std::vector<std::string> take_notes() { return compression_.take_notes(); }

 private:
  static size_t at(int partition) { return static_cast<size_t>(partition); }

  Compression compression_;
  const int rank_;
  std::vector<std::unique_ptr<OneWay>> up_, down_;  // by partition; down_: empty where sums travel as they are
  std::vector<size_t> push_at_, sum_at_;
  tensor::Tensor push_codes_, sum_codes_, leaving_sums_;
};

}  // namespace esp::sync
