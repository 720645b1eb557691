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
// sum after `collect`, and `spread` computes locally on every rank what a server would send: no communication. With
// two_phase a rank holds its chunk. Results are bit-identical on all ranks.
//
// Blocking; one thread. The communicator, the compressor and the context's pool are borrowed. Buffers are allocated
// once.
#pragma once

#include <memory>
#include <string_view>

#include "esp/comm/communicator.h"
#include "esp/sync/compress/compressor.h"
#include "esp/tensor/tensor.h"

namespace esp::sync {

enum class AggregationMethod { sum, gather, two_phase };
std::string_view name_of(AggregationMethod method);
AggregationMethod parse_aggregation_method(std::string_view name);  // UsageError lists the methods

// Payload bytes that `rank` of `size` sends for one collect and one spread. For encoded values of variable length: the
// maximum, including the exchange of lengths.
size_t bytes_sent(AggregationMethod method, const Compressor& compressor, int64_t count, DType dtype, int size,
                  int rank);

struct AllowedMethods {
  bool two_phase = true;  // false where the result must be the exact sum of the encoded values
};
// Whether the method supports this compressor and length.
bool is_supported(AggregationMethod method, const Compressor& compressor, int64_t count, DType dtype, int size);
// The method with the fewest bytes (of the busiest rank); ties go to the first in the order above.
AggregationMethod cheapest_method(const Compressor& compressor, int64_t count, DType dtype, int size,
                                  const AllowedMethods& allowed);

struct AggregationSetup {
  comm::Communicator* ranks = nullptr;  // null: one rank
  tensor::Context context;
  const Compressor* compressor = nullptr;
  int64_t count = 0;
  DType dtype = DType::f32;  // of all vectors: f32 or f64
  uint64_t seed = 0;
  bool ordered = false;  // sum in rank order
};

class Aggregation {
 public:
  virtual ~Aggregation() = default;
  virtual comm::Chunk share() const = 0;  // the part of the sum that this rank holds after collect
  // sum (of share().count) = or += Σ over ranks of C(x). Stores this rank's C(x) in `own` unless null; own may be x.
  // `event` is unique per call and equal on all ranks.
  virtual void collect(void* sum, WriteMode into, const void* x, void* own, WriteMode own_into, uint64_t event) = 0;
  // whole = or += C(share) of every rank; stores this rank's part in `own` (share().count values), which may be
  // `share`.
  virtual void spread(void* whole, WriteMode into, const void* share, void* own, WriteMode own_into,
                      uint64_t event) = 0;
};

// UsageError where the method is not supported.
std::unique_ptr<Aggregation> make_aggregation(AggregationMethod method, const AggregationSetup& setup);
std::unique_ptr<Aggregation> make_two_phase(const AggregationSetup& setup);

}  // namespace esp::sync
