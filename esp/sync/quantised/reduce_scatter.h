// qgZ of ZeRO++ (Wang et al. 2023): a reduce-scatter by two all-to-alls of quantised values, with sums in fp32.
//
// Rank (node u, local index l) splits its values into N = G·M chunks (comm::chunk_of); chunk k is for rank k = u'·G +
// l'.
//   stage 1  inside the node: the rank with local index l' gets the M chunks {u'·G + l' : u'}, each encoded separately.
//            The chunks that arrive from the G ranks are decoded and added in the order of local indices.
//   stage 2  across nodes, among ranks with the same l: the M sums are encoded again, and chunk u'·G + l goes to node
//            u'. The M chunks that arrive are added in the order of nodes.
// Every value, also the rank's own, is quantised exactly twice; a ring would quantise it N times. A stage with a single
// rank does not quantise. Without quantisation, stage 1 sends values in type `dtype` and stage 2 sends sums in the
// accumulator type; the result is then Σ_u (Σ_l x(u, l)) in that order.
//
//   inside the node, per rank  Σ_{l' ≠ l} Σ_u' E(u'·G + l')     E(k): encoded bytes of chunk k, no padding
//   across nodes, per rank     Σ_{u' ≠ u} E(u'·G + l)
//
// `start` encodes and begins stage 1 while the caller computes. Stage 2 begins in `advance` or `finish`, not when stage
// 1 completes, so that the order of calls in either group is deterministic. One object per gradient bucket; it supports
// one scatter at a time. Scatters of several buckets may be in flight if all ranks start, advance and finish them in
// the same order. All calls come from one thread. The NodeGrid and the context's pool must outlive the object.
#pragma once

#include "esp/sync/quantised/byte_exchange.h"
#include "esp/sync/quantised/encoding.h"
#include "esp/sync/quantised/node_grid.h"

namespace esp::sync {

class QuantisedScatter {
 public:
  QuantisedScatter(const NodeGrid& nodes, const tensor::Context& context, int64_t count, DType dtype,
                   const Encoding& encoding = {.bits = 4});

  void start(const tensor::Tensor& all);  // `all` may be overwritten after this call
  void advance(Deadline deadline);        // waits for stage 1 and starts stage 2
  // Writes factor · (sum of this rank's chunk) to `sum`, which may have any floating type. With factor = 1/N it is the
  // mean.
  void finish(const tensor::Tensor& sum, Deadline deadline, double factor = 1);
  bool in_flight() const { return in_flight_; }
  double waited_ms() const { return inter_node_.waited_ms() + intra_node_.waited_ms(); }

 private:
  comm::Chunk chunk(int rank) const;
  size_t bytes_of(int rank, DType wire) const;  // encoded bytes of the chunk of `rank`
  size_t column_bytes(int local) const;  // encoded bytes of the chunks for the ranks with local index `local` (stage 1)
  size_t column_count(int local) const;
  void sum_in_node();
  void encode_sums();

  const NodeGrid& nodes_;
  const tensor::Context context_;
  const size_t count_;
  const DType dtype_, sum_dtype_;
  const Encoding encoding_;
  bool in_flight_ = false, advanced_ = false;
  // outgoing_: encoded chunks by local index, then node. incoming_: chunks from the other ranks of this node. sums_,
  // encoded_sums_: the node's sums for this local index, by node, in fp32 and encoded. incoming_sums_: sums from the
  // other nodes.
  tensor::Tensor outgoing_, incoming_, sums_, encoded_sums_, incoming_sums_;
  ByteExchange intra_node_, inter_node_;  // last members: they end before the buffers they write to
};

}  // namespace esp::sync
