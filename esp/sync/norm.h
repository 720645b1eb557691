// Σ g² of each unit, over the parameters that count, when ranks own parts of them.
//
// Ordered: the sum of blocks of 4096 elements of the unit, added block by block from zero, which no cut of the elements
// over ranks changes. A block that a cut goes through is brought together first; so is one that holds elements that do
// not count, which are zeros there. Otherwise each rank sums what it owns and the sums are added, which is the same
// number up to rounding. A gradient that is not finite makes its unit's sum so, whether it counts or not.
#pragma once

#include <span>
#include <vector>

#include "esp/optim/optimizer.h"
#include "esp/sync/ranks.h"

namespace esp::sync {

class SquaredNorm {
 public:
  // `owned` of all ranks together cover every element once, or each rank owns everything. `cuts` are the elements (over
  // all units) at which another part begins: the same list on every rank. A rank may own nothing.
  SquaredNorm(const nn::ParameterList& parameters, const tensor::Context& context, std::vector<optim::Owned> owned,
              std::vector<int64_t> cuts, DType storage, bool ordered);
  const std::vector<double>& sums(Ranks& ranks);  // by unit; lent until the next call
  // The gradients of owned range `index`, where they were not known at the beginning or have moved.
  void set_gradients(size_t index, tensor::Tensor grads) { owned_[index].grads = std::move(grads); }
  // Where gradients do not stay until all have come: `begin`, then each range once while it is there; `sums` adds up.
  void begin();
  void add(size_t index, const tensor::Tensor& grads);

 private:
  static constexpr int64_t kBlock = 4096;
  void clear_ordered();
  void add_ordered(const optim::Range& range, const tensor::Tensor& grads);
  void finish_ordered(Ranks& ranks);
  void clear_runs();
  void add_runs(size_t index, const tensor::Tensor& grads);
  void finish_runs();
  // f(begin, end, counted) for each run of elements of `range` whose parameters all count, or do not.
  template <typename F>
  void for_each_run(const optim::Range& range, F&& f) const;
  int64_t block_of(const optim::Range& range, int64_t at) const;  // numbered over all units
  int64_t slot_of(int64_t block) const;                           // among those cut through; -1: it is whole

  const nn::ParameterList& parameters_;
  const tensor::Context context_;
  std::vector<optim::Owned> owned_;
  const bool ordered_, shared_;
  std::vector<int64_t> first_block_;  // of each unit, and the end
  std::vector<int64_t> cut_blocks_;   // in order
  std::vector<int64_t> cut_counts_;   // elements of each
  tensor::Tensor sums_, edges_;       // [blocks, or runs on a GPU] f64, [cut blocks · kBlock] as gradients are stored
  std::vector<double> of_units_, run_sums_;
  std::vector<size_t> first_runs_;  // of run_sums_, by owned range
  bool added_ = false;              // one by one
  std::vector<std::byte> on_host_;  // what sums_ and edges_ are over, where the context's memory is a GPU's
};

}  // namespace esp::sync
