// hpZ of ZeRO++ (Wang et al. 2023): a secondary shard of a unit's weights over the ranks of a node, so that the gather
// of backward stays inside the node.
//
// After forward's gather each rank keeps chunk `local` (of G) of the dequantised values, so a later gather inside the
// node is bit-identical. Memory: count/G elements in the storage type on each rank, category parameter, for the life of
// the object. Nothing is sent across nodes. One object per unit; it supports one gather at a time. Gathers of several
// units may be in flight if all ranks start and finish them in the same order. All calls come from one thread. The
// NodeGrid must outlive the object.
#pragma once

#include "esp/sync/quantised/node_grid.h"
#include "esp/tensor/tensor.h"

namespace esp::sync {

class SecondaryShard {
 public:
  SecondaryShard(const NodeGrid& nodes, const tensor::Context& context, int64_t count, DType storage);
  ~SecondaryShard();  // waits for a gather in flight, up to the communicator's timeout
  SecondaryShard(const SecondaryShard&) = delete;

  void keep(const tensor::Tensor& whole);
  bool kept() const { return kept_; }
  void forget() { kept_ = false; }  // call when the weights have changed: the next gather covers all ranks

  // Begins a gather into `whole` from the ranks of this node only; `whole` must exist until `finish`.
  void start(const tensor::Tensor& whole);
  void finish(Deadline deadline);
  void gather_in_node(const tensor::Tensor& whole, Deadline deadline);
  double waited_ms() const { return waited_ms_; }

 private:
  const NodeGrid& nodes_;
  const tensor::Context context_;
  const int64_t count_;
  const comm::Chunk own_;
  const tensor::Tensor shard_;
  bool kept_ = false;
  tensor::Tensor whole_;  // destination of the gather in flight
  Work work_;
  double waited_ms_ = 0;
};

}  // namespace esp::sync
