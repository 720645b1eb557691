// How ranks add up vectors that travel as codes. Three ways:
//
//   sum        codes that can be added go through an all-reduce                2(N−1)/N · code bytes sent per rank
//   gather     every rank gets all codes, decodes and adds in rank order       (N−1) · code
//   two_phase  chunk k of everybody's vector, as a code of its own, goes to rank k, who decodes and adds in rank order;
//              the sum of a chunk is compressed again and goes to everybody    ≈ 2(N−1)/N · code
//
// `collect` is the way up, `spread` the way down. With sum and gather every rank has the whole sum after `collect`, and
// `spread` is what a server would do, done alike by all: nothing is sent. With two_phase a rank has its chunk. Results
// are the same bits on every rank.
//
// Blocking; one thread. The communicator, the compressor and the context's pool are lent. Buffers are made once.
#pragma once

#include <memory>
#include <string_view>

#include "esp/comm/communicator.h"
#include "esp/sync/compress/compressor.h"
#include "esp/tensor/tensor.h"

namespace esp::sync {

enum class Way { sum, gather, two_phase };
std::string_view name_of(Way way);
Way parse_way(std::string_view name);  // UsageError lists the three

// Payload bytes that `rank` of `size` sends for one collect and one spread. For codes of no fixed length: at most, the
// exchange of lengths included.
size_t bytes_sent(Way way, const Compressor& compressor, int64_t count, DType dtype, int size, int rank);

struct WaysAllowed {
  bool two_phase = true;  // not where the sum must be that of the codes exactly
};
// Whether vectors of this length can go that way at all.
bool can_go(Way way, const Compressor& compressor, int64_t count, DType dtype, int size);
// The fewest bytes (of the rank that sends most); of equals the first in the order above.
Way cheapest_way(const Compressor& compressor, int64_t count, DType dtype, int size, const WaysAllowed& allowed);

struct AggregationSetup {
  comm::Communicator* ranks = nullptr;  // null: this rank is alone
  tensor::Context context;
  const Compressor* compressor = nullptr;
  int64_t count = 0;
  DType dtype = DType::f32;  // of all vectors: f32 or f64
  uint64_t seed = 0;
  bool ordered = false;  // sum: in rank order too
};

class Aggregation {
 public:
  virtual ~Aggregation() = default;
  virtual comm::Chunk share() const = 0;  // what this rank has of the sum
  // sum (of share().count) = or += Σ over ranks of C(x). This rank's C(x) goes into `own`; null: not wanted. own may be
  // x. `event` is new every time, the same on all ranks.
  virtual void collect(void* sum, Into into, const void* x, void* own, Into own_into, uint64_t event) = 0;
  // whole = or += C(share) of every rank's share; this rank's goes into `own`, of share().count, which may be `share`.
  virtual void spread(void* whole, Into into, const void* share, void* own, Into own_into, uint64_t event) = 0;
};

// UsageError when can_go says no.
std::unique_ptr<Aggregation> make_aggregation(Way way, const AggregationSetup& setup);
std::unique_ptr<Aggregation> make_two_phase(const AggregationSetup& setup);

}  // namespace esp::sync
