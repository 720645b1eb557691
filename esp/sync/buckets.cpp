// Partitions the parameters into gradient buckets, in reverse order of registration or in a given order.
#include "esp/sync/buckets.h"

#include <algorithm>

namespace esp::sync {

std::vector<GradientBucket> make_gradient_buckets(nn::ParameterList& parameters, int64_t first_bytes, int64_t bytes,
                                                  DType dtype) {
  const auto element = static_cast<int64_t>(size_of(dtype));
  std::vector<GradientBucket> buckets;
  auto& all = parameters.all();
  for (auto p = all.rbegin(); p != all.rend(); ++p) {
    const int64_t begin = parameters.units()[static_cast<size_t>(p->unit)].first + p->offset, end = begin + p->count();
    const int64_t limit = buckets.size() <= 1 ? first_bytes : bytes;
    if (buckets.empty() || (end - begin + buckets.back().count()) * element > limit) {
      buckets.push_back({end, end, {}});
    }
    buckets.back().begin = begin;
    buckets.back().parameters.push_back(&*p);
  }
  return buckets;
}

std::vector<GradientBucket> make_gradient_buckets(nn::ParameterList& parameters, std::span<const int32_t> order,
                                                  int64_t first_bytes, int64_t bytes, DType dtype) {
  const auto element = static_cast<int64_t>(size_of(dtype));
  std::vector<GradientBucket> buckets;
  int64_t at = 0;
  for (int32_t index : order) {
    nn::Parameter& p = parameters.all()[static_cast<size_t>(index)];
    const int64_t limit = buckets.size() <= 1 ? first_bytes : bytes;
    if (buckets.empty() || (buckets.back().count() + p.count()) * element > limit) buckets.push_back({at, at, {}});
    at += p.count();
    buckets.back().end = at;
    buckets.back().parameters.push_back(&p);
  }
  return buckets;
}

std::vector<optim::UnitRange> unit_ranges(const nn::ParameterList& parameters, int64_t begin, int64_t end) {
  std::vector<optim::UnitRange> ranges;
  for (size_t i = 0; i < parameters.units().size(); ++i) {
    const auto& unit = parameters.units()[i];
    const int64_t from = std::max(begin, unit.first), to = std::min(end, unit.first + unit.count);
    if (from < to) ranges.push_back({static_cast<int>(i), from - unit.first, to - unit.first});
  }
  return ranges;
}

}  // namespace esp::sync
