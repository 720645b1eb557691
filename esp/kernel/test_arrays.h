// Test arrays of any floating-point type with random values, and comparisons with tolerances.
//
// A kernel that computes in fp32 and rounds once may differ from the reference kernel (ref) by one unit in the last
// place (ulp) of the storage type, because the two fp32 values may lie on different sides of a rounding boundary. The
// unit is 2^-7 of the value for bf16 and 2^-10 for f16.
#pragma once

#include <cmath>
#include <cstring>
#include <memory>
#include <string>
#include <vector>

#include <fmt/format.h>
#include <gtest/gtest.h>
#include <hwy/targets.h>

#include "esp/base/rng.h"
#include "esp/device/stream.h"
#include "esp/kernel/floating.h"

namespace esp::kernel {

inline constexpr DType kFloating[] = {DType::f64, DType::f32, DType::bf16, DType::f16};

class Array {
 public:
  Array() = default;
  // The data is misaligned by one element, with guard bytes on both sides. `intact` checks that the guard bytes were
  // not written.
  Array(int64_t count, DType dtype)
      : count_(count),
        dtype_(dtype),
        memory_((static_cast<size_t>(count) + 2 * kMargin) * size_of(dtype), std::byte{0x5a}) {
    fill([](int64_t) { return 0.0; });
  }

  static Array random(int64_t count, DType dtype, uint64_t seed, double spread = 1) {
    Array made(count, dtype);
    made.fill([&](int64_t i) { return spread * (2 * random_unit(seed, 77, static_cast<uint64_t>(i)) - 1); });
    return made;
  }

  template <typename F>
  void fill(F value) {
    for (int64_t i = 0; i < count_; ++i) set(i, value(i));
  }

  void* data() { return memory_.data() + kMargin * size_of(dtype_); }
  const void* data() const { return memory_.data() + kMargin * size_of(dtype_); }
  int64_t count() const { return count_; }
  DType dtype() const { return dtype_; }

  double operator[](int64_t i) const {
    double value = 0;
    with_floating(dtype_, [&]<typename T>(std::type_identity<T>) {
      value = static_cast<double>(static_cast<Accumulator<T>>(static_cast<const T*>(data())[i]));
    });
    return value;
  }
  void set(int64_t i, double value) {
    with_floating(dtype_, [&]<typename T>(std::type_identity<T>) {
      static_cast<T*>(data())[i] = static_cast<T>(static_cast<Accumulator<T>>(value));
    });
  }

  bool same_bits(const Array& other) const { return memory_ == other.memory_; }
  bool intact() const {
    const size_t margin = kMargin * size_of(dtype_);
    for (size_t i = 0; i < margin; ++i)
      if (memory_[i] != std::byte{0x5a} || memory_[memory_.size() - 1 - i] != std::byte{0x5a}) return false;
    return true;
  }

 private:
  static constexpr size_t kMargin = 33;
  int64_t count_ = 0;
  DType dtype_ = DType::f32;
  std::vector<std::byte> memory_;
};

inline double last_place(DType dtype) {
  return dtype == DType::bf16 ? 0x1p-7 : dtype == DType::f16 ? 0x1p-10 : dtype == DType::f32 ? 0x1p-23 : 0x1p-52;
}

// Checks |got − want| ≤ (places·ulp)·(|want| + size). If `got` is a sum, `size` is the magnitude of its terms.
inline void expect_near(const Array& got, const Array& want, double places, double size, const std::string& where) {
  ASSERT_EQ(got.count(), want.count()) << where;
  EXPECT_TRUE(got.intact()) << where << " wrote outside its output";
  for (int64_t i = 0; i < got.count(); ++i) {
    const double a = got[i], b = want[i];
    if (std::isnan(a) && std::isnan(b)) continue;
    if (a == b) continue;
    const bool half = got.dtype() == DType::bf16 || got.dtype() == DType::f16;
    // The tolerance is the sum of two parts: fp32 arithmetic, and one rounding to the storage type.
    const double arithmetic = places * last_place(half ? DType::f32 : got.dtype()) * (std::abs(b) + size);
    const double storage = half ? last_place(got.dtype()) * std::abs(b) + 0x1p-24 : 0;
    ASSERT_LE(std::abs(a - b), arithmetic + storage) << where << ": element " << i << " is " << a << ", ref has " << b;
  }
}

// A CPU stream together with a pool of `num_threads` threads.
class Threads {
 public:
  explicit Threads(int num_threads) : pool_(num_threads) { stream_.pool = &pool_; }
  operator const device::Stream&() const { return stream_; }

 private:
  device::ThreadPool pool_;
  device::Stream stream_;
};

// Calls f(name) for each instruction set that this machine and this build support.
template <typename F>
void for_each_target(F f) {
  for (int64_t target : hwy::SupportedAndGeneratedTargets()) {
    hwy::SetSupportedTargetsForTest(target);
    f(std::string(hwy::TargetName(target)));
  }
  hwy::SetSupportedTargetsForTest(0);
}

// Compares gradient[i] with the central difference of `loss`, which is a function of the values of x. The tolerance is
// 1e-6 of the largest gradient.
template <typename Loss>
void expect_gradient(Array& x, const Array& gradient, Loss loss, const std::string& where) {
  double largest = 0;
  for (int64_t i = 0; i < x.count(); ++i) largest = std::max(largest, std::abs(gradient[i]));
  ASSERT_GT(largest, 0) << where;
  constexpr double kStep = 1e-5;
  for (int64_t i = 0; i < x.count(); ++i) {
    const double before = x[i];
    x.set(i, before + kStep);
    const double up = loss();
    x.set(i, before - kStep);
    const double down = loss();
    x.set(i, before);
    ASSERT_NEAR(gradient[i], (up - down) / (2 * kStep), 1e-6 * largest) << where << ", element " << i;
  }
}

// Σ a[i]·b[i]. As a loss, its gradient with respect to a is b.
inline double dot(const Array& a, const Array& b) {
  double total = 0;
  for (int64_t i = 0; i < a.count(); ++i) total += a[i] * b[i];
  return total;
}

}  // namespace esp::kernel
