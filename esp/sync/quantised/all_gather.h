// qwZ of ZeRO++ (Wang et al. 2023): an all-gather with quantised chunks, dequantised on arrival.
//
// Each rank encodes its chunk separately. In the first stage it sends the chunk across nodes, to the ranks with the
// same local index. In the second stage it sends the chunks it holds, one per node, to the other ranks of its node. So
// a chunk enters each node once. Bytes sent, exactly:
//
//   across nodes, per rank     (M−1)·E(r)              E(k): encoded bytes of chunk k, see kernel/quantize.h
//   inside the node, per rank  (G−1)·Σ_u E(u·G + local)
//
// Chunks of different sizes are neither padded nor split. A rank also dequantises its own chunk, so that all ranks
// compute with the same bits. The optimizer's fp32 weights are only read, so errors do not accumulate.
//
// `start` encodes and begins the first stage while the caller computes (on a single node: the second stage). The second
// stage begins in `advance` or `finish`, not when the first completes, so that the order of calls inside the node is
// deterministic. One object per unit; it supports one gather at a time. Gathers of several units may be in flight if
// all ranks start, advance and finish them in the same order. All calls come from one thread. The NodeGrid and the
// context's pool must outlive the object.
#pragma once

#include "esp/sync/quantised/byte_exchange.h"
#include "esp/sync/quantised/encoding.h"
#include "esp/sync/quantised/node_grid.h"

namespace esp::sync {

class QuantisedGather {
 public:
  // Rank r owns chunk r (comm::chunk_of) of `count` elements. Without quantisation `storage` is the wire type.
  QuantisedGather(const NodeGrid& nodes, const tensor::Context& context, int64_t count, DType storage,
                  const Encoding& encoding = {});

  // Begins the gather. `chunk` may have any floating type and may be overwritten after this call.
  void start(const tensor::Tensor& chunk);
  void advance(Deadline deadline);  // waits for the first stage and starts the second
  void finish(const tensor::Tensor& whole, Deadline deadline);
  bool in_flight() const { return own_chunk_.defined(); }
  double waited_ms() const { return inter_node_.waited_ms() + intra_node_.waited_ms(); }

 private:
  comm::Chunk chunk(int rank) const;
  size_t bytes_of(int rank) const;  // encoded bytes of the chunk of `rank`
  size_t column_bytes(int local) const;
  void decode_column(const tensor::Tensor& whole, int local, const std::byte* from) const;

  const NodeGrid& nodes_;
  const tensor::Context context_;
  const size_t count_;
  const DType storage_;
  const Encoding encoding_;
  // Encoded chunks. own_chunk_: of this rank. column_: of the ranks with the same local index, on all nodes.
  // peer_chunks_: of the other columns, received from the ranks of this node.
  tensor::Tensor own_chunk_, column_, peer_chunks_;
  bool advanced_ = false;
  ByteExchange inter_node_, intra_node_;  // last members: they end before the buffers they write to
};

}  // namespace esp::sync
