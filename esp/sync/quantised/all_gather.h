// qwZ of ZeRO++ (Wang et al. 2023): an all-gather with quantised chunks, dequantised on arrival.
//
// Each rank encodes its chunk separately. First the chunk is sent across nodes, to the ranks with the same local index;
// then each rank sends the chunks it holds, one per node, to the other ranks of its node. So a chunk enters each node
// once:
//
//   across, per rank    (M−1)·E(r)                 E(k): encoded bytes of chunk k, by the formula of kernel/quantize.h
//   inside, per rank    (G−1)·Σ_u E(u·G + local)
//
// to the byte: chunks of different sizes are neither padded nor split. A rank's own chunk is dequantised too, so that
// all ranks compute with the same bits. The optimizer's fp32 weights are only read: errors do not accumulate.
//
// `start` encodes and sends across nodes (or inside, on one node) while the caller computes; the second stage begins in
// `advance` or `finish`, not on completion of the first, so that the order of calls inside the node is deterministic.
// One object per unit, one gather of it at a time; gathers of several units may be in flight when all ranks start,
// advance and finish them in one order. One thread. Nodes and the context's pool outlive it.
#pragma once

#include "esp/sync/quantised/byte_exchange.h"
#include "esp/sync/quantised/encoding.h"
#include "esp/sync/quantised/node_grid.h"

namespace esp::sync {

class QuantisedGather {
 public:
  // Of `count` elements, chunk r (comm::chunk_of) on rank r; `storage` is the wire type without quantisation.
  QuantisedGather(const NodeGrid& nodes, const tensor::Context& context, int64_t count, DType storage,
                  const Encoding& encoding = {});

  void start(const tensor::Tensor& chunk);  // any floating type; may be overwritten on return
  void advance(Deadline deadline);          // waits for the first stage and starts the second
  void finish(const tensor::Tensor& whole, Deadline deadline);
  bool in_flight() const { return mine_.defined(); }
  double waited_ms() const { return across_.waited_ms() + inside_.waited_ms(); }

 private:
  comm::Chunk chunk(int rank) const;
  size_t bytes_of(int rank) const;  // encoded
  size_t column_bytes(int local) const;
  void decode_column(const tensor::Tensor& whole, int local, const std::byte* from) const;

  const NodeGrid& nodes_;
  const tensor::Context context_;
  const size_t count_;
  const DType storage_;
  const Encoding encoding_;
  // Encoded: this rank's chunk; the chunks of this local index, by node; those of the node's other ranks.
  tensor::Tensor mine_, column_, others_;
  bool advanced_ = false;
  ByteExchange across_, inside_;  // last members: end before the buffers they write to
};

}  // namespace esp::sync
