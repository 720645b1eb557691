// Vectorised top-k selection. One pass collects all elements above an estimated threshold. A radix selection among
// their magnitudes then finds exactly the k largest.
#include "esp/kernel/sparse.h"
#include "esp/kernel/cuda_dispatch.h"

#include <algorithm>
#include <cmath>
#include <vector>

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "esp/kernel/cpu/sparse.cpp"
#include <hwy/foreach_target.h>
// Includes below this line must follow hwy/foreach_target.h.
#include "esp/base/rng.h"
#include "esp/kernel/cpu/elements-inl.h"
#include "esp/kernel/elementwise.h"
#include "esp/kernel/magnitude.h"

HWY_BEFORE_NAMESPACE();
namespace esp::kernel::HWY_NAMESPACE {

// Appends every element of x whose magnitude bits are >= `least` to `indices` and `values`. The arrays have space for
// `room` elements plus one vector of slack. Returns the number of elements, or -1 if there are more than `room`.
int64_t collect_at_least(uint32_t* indices, float* values, const float* x, int64_t count, uint32_t least,
                         int64_t room) {
  const Tag<float> d;
  const hn::RebindToSigned<Tag<float>> di;
  const hn::RebindToUnsigned<Tag<float>> du;
  const int64_t lanes = lanes_of<float>();
  const auto magnitude = hn::Set(di, 0x7fffffff), below = hn::Set(di, static_cast<int32_t>(least) - 1);
  const auto steps = hn::Iota(du, 0);
  int64_t chosen = 0, i = 0;
  auto bits_at = [&](int64_t at) HWY_ATTR { return hn::And(hn::BitCast(di, hn::LoadU(d, x + at)), magnitude); };
  // Compresses in a register and stores the whole vector, because masked stores are slow. The next store overwrites the
  // unused lanes.
  auto take = [&](int64_t at) HWY_ATTR {
    const auto wanted = hn::Gt(bits_at(at), below);
    if (hn::AllFalse(di, wanted)) return;
    const auto index = hn::Add(steps, hn::Set(du, static_cast<uint32_t>(at)));
    hn::StoreU(hn::Compress(index, hn::RebindMask(du, wanted)), du, indices + chosen);
    hn::StoreU(hn::Compress(hn::LoadU(d, x + at), hn::RebindMask(d, wanted)), d, values + chosen);
    chosen += static_cast<int64_t>(hn::CountTrue(di, wanted));
  };
  for (; i + 4 * lanes <= count; i += 4 * lanes) {
    const auto largest =
        hn::Max(hn::Max(bits_at(i), bits_at(i + lanes)), hn::Max(bits_at(i + 2 * lanes), bits_at(i + 3 * lanes)));
    if (hn::AllFalse(di, hn::Gt(largest, below))) continue;
    if (chosen + 4 * lanes > room) return -1;
    for (int64_t part = 0; part < 4; ++part) take(i + part * lanes);
  }
  for (; i < count; ++i)
    if (magnitude_bits(x[i]) >= least) {
      if (chosen == room) return -1;
      indices[chosen] = static_cast<uint32_t>(i);
      values[chosen++] = x[i];
    }
  return chosen <= room ? chosen : -1;
}

}  // namespace esp::kernel::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace esp::kernel {

HWY_EXPORT(collect_at_least);

namespace {

constexpr int64_t kSlack = 4 * 64;  // elements of four vectors of the maximum length

struct Candidates {
  std::vector<uint32_t> indices;
  std::vector<float> values;
  void make_room(int64_t room) {
    const auto size = static_cast<size_t>(room + kSlack);
    if (indices.size() >= size) return;
    indices.resize(size);
    values.resize(size);
  }
};
Candidates& scratch() {
  thread_local Candidates gathered;
  return gathered;
}

// `bits`: the k-th largest magnitude (k ≥ 1). `num_equal`: how many of the k largest magnitudes equal it.
template <typename Bits>
struct Boundary {
  Bits bits;
  int64_t num_equal;
};

// Radix selection, starting with the top digit. Each pass counts the elements that match the digits found so far.
template <typename T>
auto find_boundary(const T* x, int64_t count, int64_t k) {
  using Bits = decltype(magnitude_bits(T{}));
  constexpr int kDigit = 11;
  std::vector<int64_t> histogram(4 << kDigit);
  int shift = static_cast<int>(8 * sizeof(T)) - 1;
  Bits prefix = 0;
  while (shift > 0) {
    const int width = std::min(kDigit, shift);
    const int above = shift;
    shift -= width;
    const Bits mask = (Bits{1} << width) - 1;
    std::fill(histogram.begin(), histogram.end(), 0);
    // Four interleaved histograms: increments for equal neighbours do not wait for each other
    for (int64_t i = 0; i < count; ++i) {
      const Bits bits = magnitude_bits(x[i]);
      if (bits >> above == prefix) ++histogram[(static_cast<size_t>(bits >> shift & mask) << 2) + (i & 3)];
    }
    auto digit = static_cast<int64_t>(mask);
    for (;; --digit) {
      const int64_t* four = &histogram[static_cast<size_t>(digit) << 2];
      const int64_t here = four[0] + four[1] + four[2] + four[3];
      if (k <= here) break;
      k -= here;
    }
    prefix = static_cast<Bits>(prefix << width | static_cast<Bits>(digit));
  }
  return Boundary<Bits>{prefix, k};
}

// Selects exactly the k largest of `count` magnitudes. index_of(i) is the index of x[i] in the original array.
template <typename T, typename Index>
void select_exactly(void* indices, void* values, const T* x, int64_t count, int64_t k, Index index_of) {
  auto [bits, equal] = find_boundary(x, count, k);
  int64_t at = 0;
  for (int64_t i = 0; i < count && at < k; ++i) {
    const auto here = magnitude_bits(x[i]);
    if (here < bits || (here == bits && equal-- <= 0)) continue;
    const uint32_t index = index_of(i);
    std::memcpy(static_cast<std::byte*>(indices) + 4 * at, &index, 4);
    std::memcpy(static_cast<std::byte*>(values) + static_cast<int64_t>(sizeof(T)) * at, &x[i], sizeof(T));
    ++at;
  }
  ESP_CHECK(at == k, "top_k: selected {} elements; expected k = {}", at, k);
}

// Estimates a threshold from a sample of x: slightly more than k elements have at least this magnitude. Returns 0 if x
// is too short or k is too large for a useful estimate.
uint32_t sample_threshold(const float* x, int64_t count, int64_t k) {
  constexpr int64_t kSample = 1 << 15;
  if (count < 4 * kSample) return 0;
  const int64_t stride = count / kSample;
  std::vector<float> sample(kSample);
  // Takes a random element from each contiguous range of `stride` elements, because a fixed step could miss a regular
  // pattern of x.
  for (int64_t j = 0; j < kSample; ++j)
    sample[static_cast<size_t>(j)] = x[j * stride + static_cast<int64_t>(random_bits(1, 1, static_cast<uint64_t>(j)) %
                                                                         static_cast<uint64_t>(stride))];
  const double expected = static_cast<double>(k) / static_cast<double>(count) * kSample;
  const auto rank = static_cast<int64_t>(std::ceil(expected + 5 * std::sqrt(expected) + 8));
  return rank > kSample / 2 ? 0 : find_boundary(sample.data(), kSample, rank).bits;
}

}  // namespace

void top_k(void* indices, void* values, const void* x, int64_t count, int64_t k, DType dtype,
           const device::Stream& stream) {
  require_cpu(stream, "top_k");
  ESP_CHECK(0 <= k && k <= count && count < (int64_t{1} << 32),
            "top_k: got k = {}, count = {}; expected 0 <= k <= count < 2^32", k, count);
  if (k == 0) return;
  with_real(dtype, [&]<typename T>(std::type_identity<T>) {
    const T* from = static_cast<const T*>(x);
    if constexpr (sizeof(T) == 4) {
      if (const uint32_t least = sample_threshold(from, count, k)) {
        const int64_t room = 2 * k + 4096;
        Candidates& few = scratch();
        few.make_room(room);
        const int64_t found =
            HWY_DYNAMIC_DISPATCH(collect_at_least)(few.indices.data(), few.values.data(), from, count, least, room);
        if (found >= k)
          return select_exactly(indices, values, few.values.data(), found, k,
                                [&](int64_t i) { return few.indices[static_cast<size_t>(i)]; });
      }
    }
    select_exactly(indices, values, from, count, k, [](int64_t i) { return static_cast<uint32_t>(i); });
  });
}

int64_t select_above(void* indices, void* values, const void* x, int64_t count, double threshold, DType dtype,
                     const device::Stream& stream) {
  require_cpu(stream, "select_above");
  ESP_CHECK(threshold >= 0 && count < (int64_t{1} << 32),
            "select_above: got threshold = {}, count = {}; expected threshold >= 0, count < 2^32", threshold, count);
  if (dtype == DType::f64) return ref::select_above(indices, values, x, count, threshold, dtype);
  ESP_CHECK(dtype == DType::f32, "select_above: got dtype {}; expected f32 or f64", name_of(dtype));
  const uint32_t least = magnitude_bits(static_cast<float>(threshold)) + 1;
  const auto gather = HWY_DYNAMIC_DISPATCH(collect_at_least);
  constexpr int64_t kChunk = 1 << 14;
  Candidates& few = scratch();
  few.make_room(kChunk);
  int64_t chosen = 0;
  for (int64_t first = 0; first < count; first += kChunk) {
    const int64_t n = std::min(kChunk, count - first);
    const int64_t found =
        gather(few.indices.data(), few.values.data(), static_cast<const float*>(x) + first, n, least, kChunk);
    for (int64_t j = 0; j < found; ++j) few.indices[static_cast<size_t>(j)] += static_cast<uint32_t>(first);
    std::memcpy(static_cast<std::byte*>(indices) + 4 * chosen, few.indices.data(), static_cast<size_t>(4 * found));
    std::memcpy(static_cast<std::byte*>(values) + 4 * chosen, few.values.data(), static_cast<size_t>(4 * found));
    chosen += found;
  }
  return chosen;
}

bool scatter_sparse(void* y, WriteMode into, const void* indices, const void* values, int64_t k, int64_t count,
                    DType dtype, const device::Stream& stream) {
  require_cpu(stream, "scatter_sparse");
  if (into == WriteMode::overwrite) fill(y, 0, count, dtype, stream);
  bool good = true;
  with_real(dtype, [&]<typename T>(std::type_identity<T>) {
    int64_t last = -1;
    for (int64_t j = 0; j < k; ++j) {
      uint32_t index;
      T value;
      std::memcpy(&index, static_cast<const std::byte*>(indices) + 4 * j, 4);
      std::memcpy(&value, static_cast<const std::byte*>(values) + static_cast<int64_t>(sizeof(T)) * j, sizeof(T));
      if (index >= count || index <= last) {
        good = false;
        return;
      }
      last = index;
      put(static_cast<T*>(y)[index], value, into);
    }
  });
  return good;
}

RandomCoordinates::RandomCoordinates(int64_t count, uint64_t seed, uint64_t purpose)
    : count_(static_cast<uint64_t>(count)) {
  ESP_CHECK(count >= 1 && count < (int64_t{1} << 32), "RandomCoordinates: got count {}; expected 1 <= count < 2^32",
            count);
  while ((uint64_t{1} << 2 * half_) < count_) ++half_;
  mask_ = (uint64_t{1} << half_) - 1;
  offset_ = static_cast<uint64_t>(random_unit(seed, purpose, 0) * static_cast<double>(count));
  for (int r = 0; r < kRounds; ++r) {
    add_[r] = random_bits(seed, purpose, static_cast<uint64_t>(1 + 2 * r));
    multiply_[r] = random_bits(seed, purpose, static_cast<uint64_t>(2 + 2 * r)) | 1;
  }
}

uint64_t RandomCoordinates::permuted(uint64_t j) const {
  uint64_t left = j >> half_, right = j & mask_;
  for (int r = 0; r < kRounds; ++r) {
    uint64_t mixed = (right + add_[r]) * multiply_[r];
    mixed = (mixed ^ mixed >> 29) * multiply_[r];
    const uint64_t next = left ^ (mixed >> (64 - half_));
    left = right;
    right = next & mask_;
  }
  return left << half_ | right;
}

int64_t RandomCoordinates::operator[](int64_t j) const {
  uint64_t at = permuted(static_cast<uint64_t>(j));
  // Cycle walking: applies the permutation until the result is below count. This ends, because j lies on the same cycle
  // and is below count.
  while (at >= count_) at = permuted(at);
  return static_cast<int64_t>((at + offset_) % count_);
}

namespace {

// Calls f(j, coordinate) for every j < k. Draws up to kAhead coordinates in advance and prefetches their elements.
template <typename T, typename F>
void each_coordinate(const RandomCoordinates& coordinates, const T* x, int64_t k, F f) {
  constexpr int64_t kAhead = 256;
  int64_t drawn[kAhead];
  for (int64_t first = 0; first < k; first += kAhead) {
    const int64_t n = std::min(kAhead, k - first);
    for (int64_t j = 0; j < n; ++j) {
      drawn[j] = coordinates[first + j];
      __builtin_prefetch(x + drawn[j]);
    }
    for (int64_t j = 0; j < n; ++j) f(first + j, drawn[j]);
  }
}

}  // namespace

void gather_coordinates(void* values, const void* x, const RandomCoordinates& coordinates, int64_t k, double factor,
                        DType dtype) {
  with_real(dtype, [&]<typename T>(std::type_identity<T>) {
    const T* from = static_cast<const T*>(x);
    each_coordinate(coordinates, from, k, [&](int64_t j, int64_t at) {
      const T value = from[at] * static_cast<T>(factor);
      std::memcpy(static_cast<std::byte*>(values) + static_cast<int64_t>(sizeof(T)) * j, &value, sizeof(T));
    });
  });
}

void scatter_coordinates(void* y, WriteMode into, const void* values, const RandomCoordinates& coordinates, int64_t k,
                         int64_t count, DType dtype, const device::Stream& stream) {
  require_cpu(stream, "scatter_coordinates");
  if (into == WriteMode::overwrite) fill(y, 0, count, dtype, stream);
  with_real(dtype, [&]<typename T>(std::type_identity<T>) {
    T* to = static_cast<T*>(y);
    each_coordinate(coordinates, to, k, [&](int64_t j, int64_t at) {
      T value;
      std::memcpy(&value, static_cast<const std::byte*>(values) + static_cast<int64_t>(sizeof(T)) * j, sizeof(T));
      put(to[at], value, into);
    });
  });
}

}  // namespace esp::kernel
#endif
