// Gradient norm: Σ g² of each unit, over the counted parameters, when ranks own parts of them.
//
// Ordered: blocks of 4096 elements of the unit are summed, and the sums are added block by block from zero, which is
// independent of the sharding. A block that spans a shard boundary is first assembled; so is a block with uncounted
// elements, which are zeros there. Otherwise each rank sums what it owns and the sums are added: equal up to rounding.
// A non-finite gradient makes its unit's sum non-finite, whether it is counted or not.
#pragma once

#include <span>
#include <vector>

#include "esp/optim/optimizer.h"
#include "esp/sync/timed_communicator.h"

namespace esp::sync {

class SquaredNorm {
 public:
  // `owned` of all ranks together cover every element once, or each rank owns everything. `cuts` are the shard
  // boundaries (elements over all units): the same list on every rank. A rank may own nothing.
  SquaredNorm(const nn::ParameterList& parameters, const tensor::Context& context,
              std::vector<optim::OptimizerShard> owned, std::vector<int64_t> cuts, DType storage, bool ordered);
  const std::vector<double>& sums(TimedCommunicator& ranks);  // by unit; borrowed until the next call
  // Sets the gradients of owned range `index`, where they were unknown at construction or have moved.
  void set_gradients(size_t index, tensor::Tensor grads) { owned_[index].grads = std::move(grads); }
  // Where gradients are freed before all are complete: `begin`, then `add` for each range while it exists; `sums` adds
  // them up.
  void begin();
  void add(size_t index, const tensor::Tensor& grads);

 private:
  static constexpr int64_t kBlock = 4096;
  void clear_ordered();
  void add_ordered(const optim::UnitRange& range, const tensor::Tensor& grads);
  void finish_ordered(TimedCommunicator& ranks);
  void clear_runs();
  void add_runs(size_t index, const tensor::Tensor& grads);
  void finish_runs();
  // f(begin, end, counted) for each subrange of `range` whose parameters are all counted or all uncounted.
  template <typename F>
  void for_each_run(const optim::UnitRange& range, F&& f) const;
  int64_t block_of(const optim::UnitRange& range, int64_t at) const;  // numbered over all units
  int64_t slot_of(int64_t block) const;                               // among the assembled blocks; -1: not assembled

  const nn::ParameterList& parameters_;
  const tensor::Context context_;
  std::vector<optim::OptimizerShard> owned_;
  const bool ordered_, shared_;
  std::vector<int64_t> first_block_;  // of each unit, and the end
  std::vector<int64_t> cut_blocks_;   // in order
  std::vector<int64_t> cut_counts_;   // elements of each
  tensor::Tensor sums_, edges_;  // [blocks, or ranges on a GPU] f64, [cut blocks · kBlock] as gradients are stored
  std::vector<double> of_units_, run_sums_;
  std::vector<size_t> first_runs_;  // of run_sums_, by owned range
  bool added_ = false;              // ranges were added separately
  std::vector<std::byte> on_host_;  // memory of sums_ and edges_ where the context's memory is on a GPU
};

}  // namespace esp::sync
