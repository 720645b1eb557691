// Gradient norm: Σ g² of each unit over its counted parameters (Parameter::counted), if each rank owns a part of the
// gradients.
//
// Ordered mode: each block of 4096 elements of a unit is summed, and the block sums are added in order from zero.
// Therefore the result does not depend on the sharding. A block that spans a shard boundary is first assembled from the
// parts of its owners. A block with uncounted elements is assembled too, with zeros for these elements. Unordered mode:
// each rank sums the ranges that it owns, and an all-reduce adds the sums; the result is equal up to rounding. A
// non-finite gradient makes the sum of its unit non-finite, whether its parameter is counted or not.
#pragma once

#include <span>
#include <vector>

#include "esp/optim/optimizer.h"
#include "esp/sync/timed_communicator.h"

namespace esp::sync {

class SquaredNorm {
 public:
  // The `owned` ranges of all ranks together cover every element once, or each rank owns everything. `cuts` are the
  // shard boundaries (elements over all units), the same list on every rank. A rank may own nothing.
  SquaredNorm(const nn::ParameterList& parameters, const tensor::Context& context,
              std::vector<optim::OptimizerShard> owned, std::vector<int64_t> cuts, DType storage, bool ordered);
  const std::vector<double>& sums(TimedCommunicator& ranks);  // returns one sum per unit; valid until the next call
  // Sets the gradients of owned range `index`: call if they were unknown at construction or have moved.
  void set_gradients(size_t index, tensor::Tensor grads) { owned_[index].grads = std::move(grads); }
  // For gradients that are freed before all are complete: call `begin`, then `add` for each range while its gradients
  // exist. `sums` then returns the totals.
  void begin();
  void add(size_t index, const tensor::Tensor& grads);

 private:
  static constexpr int64_t kBlock = 4096;
  void clear_ordered();
  void add_ordered(const optim::UnitRange& range, const tensor::Tensor& grads);
  void finish_ordered(TimedCommunicator& ranks);
  void clear_segments();
  void add_segments(size_t index, const tensor::Tensor& grads);
  void finish_segments();
  // Splits `range` into segments: contiguous parts whose parameters are all counted or all uncounted. Calls f(begin,
  // end, counted) for each segment.
  template <typename F>
  void for_each_segment(const optim::UnitRange& range, F&& f) const;
  int64_t block_of(const optim::UnitRange& range, int64_t at) const;  // block index, counted over all units
  int64_t slot_of(int64_t block) const;  // index of the block among the assembled blocks; -1: it needs no assembly

  const nn::ParameterList& parameters_;
  const tensor::Context context_;
  std::vector<optim::OptimizerShard> owned_;
  const bool ordered_, shared_;
  std::vector<int64_t> first_block_;  // index of the first block of each unit, and the total number of blocks
  std::vector<int64_t> cut_blocks_;   // indices of the assembled blocks, ascending
  std::vector<int64_t> cut_counts_;   // number of elements of each assembled block
  // sums_: f64, one sum per block; in unordered mode on a GPU, one sum per segment. edges_: the assembled blocks,
  // kBlock elements each, in the storage type
  tensor::Tensor sums_, edges_;
  std::vector<double> of_units_, segment_sums_;
  std::vector<size_t> first_segments_;  // [owned range]: index in segment_sums_ of its first segment
  bool added_ = false;                  // true: the ranges were added one by one (begin, add)
  std::vector<std::byte> on_host_;      // memory of sums_ and edges_ if the model is on a GPU
};

}  // namespace esp::sync
