// Aggregation of compressed vectors over ranks. `code` is the size of one encoded vector in bytes. Three methods:
//
//   sum        all-reduce of the encoded values, for compressors whose encoded values can be added
//              2(N−1)/N · code bytes sent per rank
//   gather     all-gather of the encoded values; every rank decodes and adds them in rank order
//              (N−1) · code
//   two_phase  all-to-all of chunks, each encoded separately: rank k decodes and adds chunk k in rank order, encodes
//              the sum again and all-gathers it
//              ≈ 2(N−1)/N · code
//
// `collect` is the first half (reduce), `spread` the second (broadcast). With sum and gather every rank holds the whole
// sum after `collect`, and `spread` needs no communication: every rank computes locally the vector that a server would
// send. With two_phase a rank holds only its chunk of the sum. Results are bit-identical on all ranks.
//
// All calls block and come from one thread. The communicator, the compressor and the context's pool are not owned.
// Buffers are allocated once.
#pragma once

#include <memory>
#include <string_view>

#include "esp/comm/communicator.h"
#include "esp/sync/compress/compressor.h"
#include "esp/tensor/tensor.h"

namespace esp::sync {

enum class AggregationMethod { sum, gather, two_phase };
std::string_view name_of(AggregationMethod method);
AggregationMethod parse_aggregation_method(std::string_view name);  // throws a UsageError that lists the methods

// Payload bytes that `rank` of `size` sends for one collect and one spread. For encoded values of variable length: the
// maximum, including the exchange of lengths.
size_t bytes_sent(AggregationMethod method, const Compressor& compressor, int64_t count, DType dtype, int size,
                  int rank);

struct AllowedMethods {
  // false: two_phase is not allowed, because the result must be the exact sum of the encoded values
  bool two_phase = true;
};
// Whether the method supports this compressor for vectors of this length.
bool is_supported(AggregationMethod method, const Compressor& compressor, int64_t count, DType dtype, int size);
// The method that minimises the bytes sent by the rank that sends most. On a tie, the first of sum, gather and
// two_phase.
AggregationMethod cheapest_method(const Compressor& compressor, int64_t count, DType dtype, int size,
                                  const AllowedMethods& allowed);

struct AggregationSetup {
  comm::Communicator* ranks = nullptr;  // null for a single rank
  tensor::Context context;
  const Compressor* compressor = nullptr;
  int64_t count = 0;
  DType dtype = DType::f32;  // type of all vectors: f32 or f64
  uint64_t seed = 0;
  bool ordered = false;  // true: sums are added in rank order
};

class Aggregation {
 public:
  virtual ~Aggregation() = default;
  virtual comm::Chunk share() const = 0;  // the chunk of the sum that this rank holds after collect
  // Adds the encoded vectors of all ranks: sum (of share().count values) = or += Σ over ranks of C(x). If `own` is not
  // null, this rank's C(x) is written to it (own_into: overwrite, add or subtract); `own` may be `x`. `event` is unique
  // per call and equal on all ranks.
  virtual void collect(void* sum, WriteMode into, const void* x, void* own, WriteMode own_into, uint64_t event) = 0;
  // Distributes the sum: whole = or += C(share) of every rank. This rank's C(share) (share().count values) is written
  // to `own`, which may be `share`.
  virtual void spread(void* whole, WriteMode into, const void* share, void* own, WriteMode own_into,
                      uint64_t event) = 0;
};

// Throws UsageError if the method does not support the compressor.
std::unique_ptr<Aggregation> make_aggregation(AggregationMethod method, const AggregationSetup& setup);
std::unique_ptr<Aggregation> make_two_phase(const AggregationSetup& setup);

}  // namespace esp::sync
