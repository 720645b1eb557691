// Vectorised selection: one pass gathers everything above a bound; the exact choice is a radix selection among the
// gathered magnitudes.
#include "esp/kernel/sparse.h"
#include "esp/kernel/on_cuda.h"

#include <algorithm>
#include <cmath>
#include <vector>

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "esp/kernel/cpu/sparse.cpp"
#include <hwy/foreach_target.h>
// foreach_target must come first
#include "esp/base/rng.h"
#include "esp/kernel/cpu/elements-inl.h"
#include "esp/kernel/elementwise.h"
#include "esp/kernel/magnitude.h"

HWY_BEFORE_NAMESPACE();
namespace esp::kernel::HWY_NAMESPACE {

// Appends every element whose magnitude's bits are `least` or more to the arrays, which hold `room` and a vector's
// slack each. Returns how many, or -1 as soon as there is no room.
int64_t gather_from(uint32_t* indices, float* values, const float* x, int64_t count, uint32_t least, int64_t room) {
  const Tag<float> d;
  const hn::RebindToSigned<Tag<float>> di;
  const hn::RebindToUnsigned<Tag<float>> du;
  const int64_t lanes = lanes_of<float>();
  const auto magnitude = hn::Set(di, 0x7fffffff), below = hn::Set(di, static_cast<int32_t>(least) - 1);
  const auto steps = hn::Iota(du, 0);
  int64_t chosen = 0, i = 0;
  auto bits_at = [&](int64_t at) HWY_ATTR { return hn::And(hn::BitCast(di, hn::LoadU(d, x + at)), magnitude); };
  // Compressed in a register and stored whole: what lies behind is overwritten next. (Storing some lanes only is slow.)
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

HWY_EXPORT(gather_from);

namespace {

constexpr int64_t kSlack = 4 * 64;  // of the longest vectors

struct Gathered {
  std::vector<uint32_t> indices;
  std::vector<float> values;
  void make_room(int64_t room) {
    const auto size = static_cast<size_t>(room + kSlack);
    if (indices.size() >= size) return;
    indices.resize(size);
    values.resize(size);
  }
};
Gathered& scratch() {
  thread_local Gathered gathered;
  return gathered;
}

// The k-th largest magnitude, k ≥ 1, and how many of those equal to it are among the first k.
template <typename Bits>
struct Boundary {
  Bits bits;
  int64_t num_equal;
};

// Digit by digit from the top: each pass counts those that share the digits known so far.
template <typename T>
auto boundary_of(const T* x, int64_t count, int64_t k) {
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
    for (int64_t i = 0; i < count; ++i) {  // four counts in turn: equal neighbours do not wait for each other
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

// The first k of `count` by magnitude; index_of(i) names element i.
template <typename T, typename Index>
void select_exactly(void* indices, void* values, const T* x, int64_t count, int64_t k, Index index_of) {
  auto [bits, equal] = boundary_of(x, count, k);
  int64_t at = 0;
  for (int64_t i = 0; i < count && at < k; ++i) {
    const auto here = magnitude_bits(x[i]);
    if (here < bits || (here == bits && equal-- <= 0)) continue;
    const uint32_t index = index_of(i);
    std::memcpy(static_cast<std::byte*>(indices) + 4 * at, &index, 4);
    std::memcpy(static_cast<std::byte*>(values) + static_cast<int64_t>(sizeof(T)) * at, &x[i], sizeof(T));
    ++at;
  }
  ESP_CHECK(at == k, "{} of {} chosen", at, k);
}

// A magnitude that a few more than k of x reach, as a sample has it; 0: no use.
uint32_t bound_by_sample(const float* x, int64_t count, int64_t k) {
  constexpr int64_t kSample = 1 << 15;
  if (count < 4 * kSample) return 0;
  const int64_t stride = count / kSample;
  std::vector<float> sample(kSample);
  for (int64_t j = 0; j < kSample; ++j)  // somewhere in every stretch: no regular pattern of x is always missed
    sample[static_cast<size_t>(j)] = x[j * stride + static_cast<int64_t>(random_bits(1, 1, static_cast<uint64_t>(j)) %
                                                                         static_cast<uint64_t>(stride))];
  const double expected = static_cast<double>(k) / static_cast<double>(count) * kSample;
  const auto rank = static_cast<int64_t>(std::ceil(expected + 5 * std::sqrt(expected) + 8));
  return rank > kSample / 2 ? 0 : boundary_of(sample.data(), kSample, rank).bits;
}

}  // namespace

void top_k(void* indices, void* values, const void* x, int64_t count, int64_t k, DType dtype,
           const device::Stream& stream) {
  refuse_cuda(stream, "top_k");
  ESP_CHECK(0 <= k && k <= count && count < (int64_t{1} << 32), "{} of {}", k, count);
  if (k == 0) return;
  with_real(dtype, [&]<typename T>(std::type_identity<T>) {
    const T* from = static_cast<const T*>(x);
    if constexpr (sizeof(T) == 4) {
      if (const uint32_t least = bound_by_sample(from, count, k)) {
        const int64_t room = 2 * k + 4096;
        Gathered& few = scratch();
        few.make_room(room);
        const int64_t found =
            HWY_DYNAMIC_DISPATCH(gather_from)(few.indices.data(), few.values.data(), from, count, least, room);
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
  refuse_cuda(stream, "select_above");
  ESP_CHECK(threshold >= 0 && count < (int64_t{1} << 32), "threshold {} of {}", threshold, count);
  if (dtype == DType::f64) return ref::select_above(indices, values, x, count, threshold, dtype);
  ESP_CHECK(dtype == DType::f32, "{} is neither f32 nor f64", name_of(dtype));
  const uint32_t least = magnitude_bits(static_cast<float>(threshold)) + 1;
  const auto gather = HWY_DYNAMIC_DISPATCH(gather_from);
  constexpr int64_t kRun = 1 << 14;
  Gathered& few = scratch();
  few.make_room(kRun);
  int64_t chosen = 0;
  for (int64_t first = 0; first < count; first += kRun) {
    const int64_t n = std::min(kRun, count - first);
    const int64_t found =
        gather(few.indices.data(), few.values.data(), static_cast<const float*>(x) + first, n, least, kRun);
    for (int64_t j = 0; j < found; ++j) few.indices[static_cast<size_t>(j)] += static_cast<uint32_t>(first);
    std::memcpy(static_cast<std::byte*>(indices) + 4 * chosen, few.indices.data(), static_cast<size_t>(4 * found));
    std::memcpy(static_cast<std::byte*>(values) + 4 * chosen, few.values.data(), static_cast<size_t>(4 * found));
    chosen += found;
  }
  return chosen;
}

bool scatter_sparse(void* y, WriteMode into, const void* indices, const void* values, int64_t k, int64_t count,
                    DType dtype, const device::Stream& stream) {
  refuse_cuda(stream, "scatter_sparse");
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
  ESP_CHECK(count >= 1 && count < (int64_t{1} << 32), "coordinates of {}", count);
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
  while (at >= count_) at = permuted(at);  // the cycle through j comes back below count: it begins there
  return static_cast<int64_t>((at + offset_) % count_);
}

namespace {

// f(j, coordinate) for every j below k. Coordinates are drawn some ahead, so that their elements are on their way.
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

void gather_at(void* values, const void* x, const RandomCoordinates& coordinates, int64_t k, double factor,
               DType dtype) {
  with_real(dtype, [&]<typename T>(std::type_identity<T>) {
    const T* from = static_cast<const T*>(x);
    each_coordinate(coordinates, from, k, [&](int64_t j, int64_t at) {
      const T value = from[at] * static_cast<T>(factor);
      std::memcpy(static_cast<std::byte*>(values) + static_cast<int64_t>(sizeof(T)) * j, &value, sizeof(T));
    });
  });
}

void scatter_at(void* y, WriteMode into, const void* values, const RandomCoordinates& coordinates, int64_t k,
                int64_t count, DType dtype, const device::Stream& stream) {
  refuse_cuda(stream, "scatter_at");
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
