// hpZ of ZeRO++ (Wang et al. 2023): a secondary shard of a unit's weights over the ranks of a node, so that the gather
// of backward stays inside the node.
//
// After forward's gather each rank keeps chunk `local` of G of the dequantised values, so a later gather in the node is
// bit-identical. Costs count/G elements of storage on each rank, of category parameter, for the life of the object;
// sends nothing across nodes. One object per unit, one gather at a time; several units may be in flight when all ranks
// start and finish them in one order. One thread. Nodes outlive it.
#pragma once

#include "esp/sync/quantised/node_grid.h"
#include "esp/tensor/tensor.h"

namespace esp::sync {

class SecondaryShard {
 public:
  SecondaryShard(const NodeGrid& nodes, const tensor::Context& context, int64_t count, DType storage);
  ~SecondaryShard();  // waits for what was started, up to the communicator's timeout
  SecondaryShard(const SecondaryShard&) = delete;

  void keep(const tensor::Tensor& whole);
  bool kept() const { return kept_; }
  void forget() { kept_ = false; }  // the weights have changed: the next gather covers all ranks

  // Gathers into `whole`, which must exist until `finish`, from the ranks of this node only.
  void start(const tensor::Tensor& whole);
  void finish(Deadline deadline);
  void gather_inside(const tensor::Tensor& whole, Deadline deadline);
  double waited_ms() const { return waited_ms_; }

 private:
  const NodeGrid& nodes_;
  const tensor::Context context_;
  const int64_t count_;
  const comm::Chunk own_;
  const tensor::Tensor shard_;
  bool kept_ = false;
  tensor::Tensor whole_;  // while a gather is in flight
  Work work_;
  double waited_ms_ = 0;
};

}  // namespace esp::sync
