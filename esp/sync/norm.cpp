#include "esp/sync/norm.h"

#include <algorithm>
#include <cstring>

#include "esp/device/gpu.h"
#include "esp/device/is_cuda.h"
#include "esp/kernel/elementwise.h"

namespace esp::sync {

using optim::OptimizerShard;
using optim::UnitRange;
using tensor::Tensor;

SquaredNorm::SquaredNorm(const nn::ParameterList& parameters, const tensor::Context& context,
                         std::vector<OptimizerShard> owned, std::vector<int64_t> cuts, DType storage, bool ordered)
    : parameters_(parameters),
      context_(context),
      owned_(std::move(owned)),
      // A GPU adds in a fixed order anyway; `ordered` matters there only if several ranks add their sums.
      ordered_(ordered && !(cuts.empty() && device::is_cuda(context.stream))),
      shared_(!cuts.empty()),
      of_units_(parameters.units().size()) {
  if (!ordered_) return;
  first_block_.push_back(0);
  for (const auto& unit : parameters.units())
    first_block_.push_back(first_block_.back() + (unit.count + kBlock - 1) / kBlock);
  // The ends of an uncounted parameter are treated as shard boundaries.
  for (const nn::Parameter& p : parameters.all()) {
    if (p.counted) continue;
    const int64_t at = parameters.units()[static_cast<size_t>(p.unit)].first + p.offset;
    cuts.insert(cuts.end(), {at, at + p.count()});
  }
  std::sort(cuts.begin(), cuts.end());
  for (size_t u = 0; u < parameters.units().size(); ++u) {
    const auto& unit = parameters.units()[u];
    for (int64_t cut : cuts) {
      const int64_t at = cut - unit.first;
      if (at <= 0 || at >= unit.count || at % kBlock == 0) continue;
      const int64_t block = first_block_[u] + at / kBlock;
      if (!cut_blocks_.empty() && cut_blocks_.back() == block) continue;
      cut_blocks_.push_back(block);
      cut_counts_.push_back(std::min(kBlock, unit.count - at / kBlock * kBlock));
    }
  }
  const tensor::Shape blocks{first_block_.back()}, edges{static_cast<int64_t>(cut_blocks_.size()) * kBlock};
  if (device::is_cuda(context.stream)) {  // the host adds the block sums, so they are in host memory
    on_host_.resize(static_cast<size_t>(blocks.count()) * sizeof(double) +
                    static_cast<size_t>(edges.count()) * size_of(storage));
    sums_ = Tensor::borrow(on_host_.data(), blocks, DType::f64);
    if (!cut_blocks_.empty()) edges_ = Tensor::borrow(on_host_.data() + sums_.bytes(), edges, storage);
    return;
  }
  sums_ = tensor::zeros(context, blocks, DType::f64, device::MemoryCategory::buffer);
  if (!cut_blocks_.empty()) edges_ = tensor::zeros(context, edges, storage, device::MemoryCategory::buffer);
}

int64_t SquaredNorm::block_of(const UnitRange& range, int64_t at) const {
  return first_block_[static_cast<size_t>(range.unit)] + at / kBlock;
}

int64_t SquaredNorm::slot_of(int64_t block) const {
  const auto found = std::lower_bound(cut_blocks_.begin(), cut_blocks_.end(), block);
  return found != cut_blocks_.end() && *found == block ? found - cut_blocks_.begin() : -1;
}

// Adjacent counted parameters form one segment. If all parameters are counted, the whole range is one segment.
template <typename F>
void SquaredNorm::for_each_segment(const UnitRange& range, F&& f) const {
  int64_t begin = range.begin;
  for (const nn::Parameter* p : parameters_.units()[static_cast<size_t>(range.unit)].parameters) {
    if (p->counted || p->offset >= range.end || p->offset + p->count() <= range.begin) continue;
    const int64_t first = std::max(begin, p->offset), end = std::min(p->offset + p->count(), range.end);
    if (begin < first) f(begin, first, true);
    f(first, end, false);
    begin = end;
  }
  if (begin < range.end) f(begin, range.end, true);
}

const std::vector<double>& SquaredNorm::sums(TimedCommunicator& ranks) {
  if (!added_) {
    begin();
    for (size_t index = 0; index < owned_.size(); ++index) add(index, owned_[index].grads);
  }
  added_ = false;
  std::fill(of_units_.begin(), of_units_.end(), 0);
  if (ordered_) {
    finish_ordered(ranks);
    return of_units_;
  }
  finish_segments();
  if (shared_) {
    const auto num_units = static_cast<int64_t>(of_units_.size());
    ranks.wait(ranks.start_all_reduce(Tensor::borrow(of_units_.data(), {num_units}, DType::f64)), "norm");
  }
  return of_units_;
}

void SquaredNorm::begin() {
  added_ = true;
  ordered_ ? clear_ordered() : clear_segments();
}

void SquaredNorm::add(size_t index, const Tensor& grads) {
  ordered_ ? add_ordered(owned_[index].range, grads) : add_segments(index, grads);
}

void SquaredNorm::clear_segments() {
  segment_sums_.clear();
  first_segments_.clear();
  for (const OptimizerShard& one : owned_) {
    first_segments_.push_back(segment_sums_.size());
    for_each_segment(one.range, [&](int64_t, int64_t, bool) { segment_sums_.push_back(0); });
  }
  const auto num_segments = static_cast<int64_t>(segment_sums_.size());
  if (device::is_cuda(context_.stream) && (!sums_.defined() || sums_.count() < num_segments))
    sums_ = tensor::empty(context_, {num_segments}, DType::f64, device::MemoryCategory::buffer);
}

void SquaredNorm::add_segments(size_t index, const Tensor& grads) {
  const UnitRange& range = owned_[index].range;
  double* to = (device::is_cuda(context_.stream) ? sums_.as<double>() : segment_sums_.data()) + first_segments_[index];
  for_each_segment(range, [&](int64_t begin, int64_t end, bool) {
    const Tensor segment = grads.slice(begin - range.begin, end - range.begin);
    kernel::sum_of_squares_to(to++, segment.data(), segment.count(), segment.dtype(), context_.stream);
  });
}

// On a GPU, one copy brings the sums of all segments to the host.
void SquaredNorm::finish_segments() {
  if (device::is_cuda(context_.stream)) {
    device::copy(segment_sums_.data(), sums_.data(), segment_sums_.size() * sizeof(double), context_.stream);
    device::finish(context_.stream);
  }
  const double* sum = segment_sums_.data();
  for (const OptimizerShard& one : owned_)
    for_each_segment(one.range, [&](int64_t, int64_t, bool counted) {
      // 0 * sum is NaN if an uncounted value is not finite, and 0 otherwise.
      of_units_[static_cast<size_t>(one.range.unit)] += counted ? *sum : 0 * *sum;
      ++sum;
    });
}

void SquaredNorm::clear_ordered() {
  std::memset(sums_.data(), 0, sums_.bytes());
  if (edges_.defined()) std::memset(edges_.data(), 0, edges_.bytes());
}

void SquaredNorm::add_ordered(const UnitRange& range, const Tensor& all) {
  const device::Stream alone;
  double* sums = sums_.as<double>();
  const size_t element = size_of(all.dtype());
  const std::byte* grads = all.as<std::byte>();
  std::vector<std::byte> copied;
  if (!device::is_host_accessible(grads)) {
    copied.resize(all.bytes());
    device::transfer(copied.data(), grads, copied.size());
    grads = copied.data();
  }
  for_each_segment(range, [&](int64_t first, int64_t last, bool counted) {
    for (int64_t at = first; at < last;) {
      const int64_t end = std::min((at / kBlock + 1) * kBlock, last);
      const int64_t block = block_of(range, at), slot = slot_of(block);
      const std::byte* from = grads + static_cast<size_t>(at - range.begin) * element;
      if (!counted) {
        sums[block] += 0 * kernel::sum_of_squares(from, end - at, all.dtype(), alone);
      } else if (slot < 0) {
        sums[block] = kernel::sum_of_squares(from, end - at, all.dtype(), alone);
      } else {
        std::memcpy(edges_.as<std::byte>() + static_cast<size_t>(slot * kBlock + at % kBlock) * element, from,
                    static_cast<size_t>(end - at) * element);
      }
      at = end;
    }
  });
}

void SquaredNorm::finish_ordered(TimedCommunicator& ranks) {
  const device::Stream alone;
  double* sums = sums_.as<double>();
  if (shared_) {
    const Work summing = ranks.start_all_reduce(sums_);  // one rank owns each block; the other ranks add zeros
    if (edges_.defined()) ranks.wait(ranks.start_all_reduce(edges_), "norm");
    ranks.wait(summing, "norm");
  }
  for (size_t i = 0; i < cut_blocks_.size(); ++i) {
    const Tensor block = edges_.slice(static_cast<int64_t>(i) * kBlock, static_cast<int64_t>(i + 1) * kBlock);
    sums[cut_blocks_[i]] += kernel::sum_of_squares(block.data(), cut_counts_[i], block.dtype(), alone);
  }
  for (size_t unit = 0; unit < of_units_.size(); ++unit)
    for (int64_t block = first_block_[unit]; block < first_block_[unit + 1]; ++block) of_units_[unit] += sums[block];
}

}  // namespace esp::sync
