// qgZ of ZeRO++ (Wang et al. 2023): a reduce-scatter by two all-to-alls of quantised values, sums in fp32.
//
// Rank (node u, local l) splits its values into N = G·M chunks (comm::chunk_of), chunk k for rank k = u'·G + l'.
//   1  inside the node: local peer l' gets the M chunks {u'·G + l' : u'}, encoded separately; the chunks that arrive
//      from the G ranks are decoded and added in the order of local indices.
//   2  across nodes, among equal l: the M sums are encoded again, chunk u'·G + l goes to node u', and the M that arrive
//      are added in the order of nodes.
// So every value is quantised exactly twice, also a rank's own, where a ring would do it N times; a stage of one rank
// does not quantise. Without quantisation values are sent in their type in stage 1 and as accumulators in stage 2; the
// result is then Σ_u (Σ_l x(u, l)) in that order.
//
//   inside, per rank    Σ_{l' ≠ l} Σ_u' E(u'·G + l')     E(k): encoded bytes of chunk k, no padding
//   across, per rank    Σ_{u' ≠ u} E(u'·G + l)
//
// `start` encodes and starts stage 1 while the caller computes. Stage 2 begins in `advance` or `finish`, not on
// completion of the first, so that the order of calls in either group is deterministic. One object per bucket, one
// scatter of it at a time; several may be in flight when all ranks start, advance and finish them in one order. One
// thread. Nodes and the context's pool outlive it.
#pragma once

#include "esp/sync/quantised/byte_exchange.h"
#include "esp/sync/quantised/encoding.h"
#include "esp/sync/quantised/node_grid.h"

namespace esp::sync {

class QuantisedScatter {
 public:
  QuantisedScatter(const NodeGrid& nodes, const tensor::Context& context, int64_t count, DType dtype,
                   const Encoding& encoding = {.bits = 4});

  void start(const tensor::Tensor& all);  // may be overwritten on return
  void advance(Deadline deadline);        // waits for stage 1 and starts stage 2
  // factor·sum of this rank's chunk, in any floating type, overwritten. factor 1/N: the mean.
  void finish(const tensor::Tensor& sum, Deadline deadline, double factor = 1);
  bool in_flight() const { return in_flight_; }
  double waited_ms() const { return across_.waited_ms() + inside_.waited_ms(); }

 private:
  comm::Chunk chunk(int rank) const;
  size_t bytes_of(int rank, DType wire) const;  // encoded
  size_t column_bytes(int local) const;         // of the chunks of one local index, in stage 1
  size_t column_count(int local) const;
  void sum_inside();
  void encode_sums();

  const NodeGrid& nodes_;
  const tensor::Context context_;
  const size_t count_;
  const DType dtype_, sum_dtype_;
  const Encoding encoding_;
  bool in_flight_ = false, advanced_ = false;
  // Encoded, by local index and node; from the node's other ranks; this local index's sums by node, fp32 and encoded;
  // from the other nodes.
  tensor::Tensor outgoing_, incoming_, sums_, encoded_sums_, incoming_sums_;
  ByteExchange inside_, across_;  // last members: end before the buffers they write to
};

}  // namespace esp::sync
