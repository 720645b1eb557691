// qwZ of ZeRO++ (Wang et al. 2023): an all-gather whose chunks travel quantised and are dequantised on arrival.
//
// Each rank encodes its chunk by itself. First the chunk goes across nodes, to the ranks of equal local number; then
// each rank hands the chunks it now has, one per node, to the others of its node. So a chunk enters each node once:
//
//   across, per rank    (M−1)·E(r)                 E(k): encoded bytes of chunk k, by the formula of kernel/quantize.h
//   inside, per rank    (G−1)·Σ_u E(u·G + local)
//
// to the byte: chunks of different sizes are neither padded nor cut. A rank's own chunk comes out dequantised too, so
// that all ranks compute with the same bits. The optimizer's values are only read: errors do not accumulate.
//
// `start` encodes and sends across (or inside, on one node) while the caller computes; the second stage begins in
// `advance` or `finish`, not when the first happens to be done, so that the order of calls inside the node is the
// program's on every rank. One per unit, one gather of it at a time; those of several units may be under way together
// when all ranks start, advance and finish them in one order. One thread. Nodes and the context's pool outlive it.
#pragma once

#include "esp/sync/quantised/encoding.h"
#include "esp/sync/quantised/exchange.h"
#include "esp/sync/quantised/nodes.h"

namespace esp::sync {

class QuantisedGather {
 public:
  // Of `count` elements, chunk r (comm::chunk_of) on rank r; `storage` is what plain ones travel as.
  QuantisedGather(const Nodes& nodes, const tensor::Context& context, int64_t count, DType storage,
                  const Encoding& encoding = {});

  void start(const tensor::Tensor& chunk);  // of any floating type; free again on return
  void advance(Deadline deadline);          // waits for the first stage and starts the second
  void finish(const tensor::Tensor& whole, Deadline deadline);
  bool under_way() const { return mine_.defined(); }
  double waited_ms() const { return across_.waited_ms() + inside_.waited_ms(); }

 private:
  comm::Chunk chunk(int rank) const;
  size_t bytes_of(int rank) const;  // encoded
  size_t column_bytes(int local) const;
  void decode_column(const tensor::Tensor& whole, int local, const std::byte* from) const;

  const Nodes& nodes_;
  const tensor::Context context_;
  const size_t count_;
  const DType storage_;
  const Encoding encoding_;
  // Encoded: this rank's chunk; the chunks of this local number, by node; those of the node's other ranks.
  tensor::Tensor mine_, column_, others_;
  bool advanced_ = false;
  Exchange across_, inside_;  // last: they end before what they write to
};

}  // namespace esp::sync
