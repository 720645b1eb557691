// hpZ of ZeRO++ (Wang et al. 2023): a second copy of a unit's values, cut over the ranks of a node, so that the gather
// of backward never leaves it.
//
// After forward's gather each rank keeps chunk `local` of G of the values as they came out of it, dequantised: what is
// gathered from the node later is the same, bit for bit. Costs count/G elements of storage on each rank, of category
// parameter, for the life of the object; sends nothing across nodes. One per unit, one gather at a time; those of
// several units may be under way together when all ranks start and finish them in one order. One thread. Nodes outlive
// it.
#pragma once

#include "esp/sync/quantised/nodes.h"
#include "esp/tensor/tensor.h"

namespace esp::sync {

class SecondaryShard {
 public:
  SecondaryShard(const Nodes& nodes, const tensor::Context& context, int64_t count, DType storage);
  ~SecondaryShard();  // waits for what was started; the communicator bounds that
  SecondaryShard(const SecondaryShard&) = delete;

  void keep(const tensor::Tensor& whole);
  bool kept() const { return kept_; }
  void forget() { kept_ = false; }  // the values have changed: gather them from everybody next

  // Into `whole`, which must stay until `finish`, from the ranks of this node alone.
  void start(const tensor::Tensor& whole);
  void finish(Deadline deadline);
  void gather_inside(const tensor::Tensor& whole, Deadline deadline);
  double waited_ms() const { return waited_ms_; }

 private:
  const Nodes& nodes_;
  const tensor::Context context_;
  const int64_t count_;
  const comm::Chunk own_;
  const tensor::Tensor shard_;
  bool kept_ = false;
  tensor::Tensor whole_;  // while a gather is under way
  Work work_;
  double waited_ms_ = 0;
};

}  // namespace esp::sync
