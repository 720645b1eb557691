// GPU arrays for tests, with guard bytes on both sides and with any alignment. The test fixture GpuTest skips the test
// if there is no GPU.
#pragma once

#include <memory>
#include <vector>

#include <gtest/gtest.h>

#include "esp/device/gpu.h"
#include "esp/kernel/test_arrays.h"

namespace esp::kernel {

class GpuTest : public ::testing::Test {
 protected:
  void SetUp() override {
    const device::GpuSurvey survey = device::survey_gpus();
    if (survey.gpus.empty()) GTEST_SKIP() << "no GPU: " << survey.problem;
    const device::Device gpu{device::DeviceKind::cuda, 0};
    memory_ = device::gpu_memory(gpu);
    queue_ = std::make_unique<device::GpuQueue>(gpu);
    stream = queue_->stream();
  }

 public:
  // A GPU copy of host memory. Its address is `shift` bytes past a 16-byte boundary.
  class GpuBuffer {
   public:
    GpuBuffer(GpuTest& test, const void* from, size_t bytes, size_t shift)
        : test_(test), bytes_(bytes), shift_(shift), memory_(test.memory_->take(bytes + 2 * kGuard)) {
      std::vector<std::byte> host(bytes + 2 * kGuard, std::byte{0x5a});
      if (bytes) std::memcpy(host.data() + kGuard / 2 + shift, from, bytes);
      device::copy(memory_, host.data(), host.size(), test.stream);
      device::finish(test.stream);
    }
    ~GpuBuffer() { test_.memory_->give(memory_, bytes_ + 2 * kGuard); }
    GpuBuffer(const GpuBuffer&) = delete;
    GpuBuffer& operator=(const GpuBuffer&) = delete;

    void* data() const { return memory_ + kGuard / 2 + shift_; }
    // Copies the data to the host. Returns true if the guard bytes are intact.
    bool fetch(void* to) const {
      std::vector<std::byte> host(bytes_ + 2 * kGuard);
      device::copy(host.data(), memory_, host.size(), test_.stream);
      device::finish(test_.stream);
      if (bytes_) std::memcpy(to, host.data() + kGuard / 2 + shift_, bytes_);
      for (size_t i = 0; i < host.size(); ++i)
        if ((i < kGuard / 2 + shift_ || i >= kGuard / 2 + shift_ + bytes_) && host[i] != std::byte{0x5a}) return false;
      return true;
    }

   private:
    static constexpr size_t kGuard = 512;
    GpuTest& test_;
    size_t bytes_, shift_;
    std::byte* memory_;
  };

  // A GPU copy of an Array, shifted by `shift` elements.
  class GpuArray {
   public:
    GpuArray(GpuTest& test, const Array& array, int64_t shift = 0)
        : like_(array), copy_(test, array.data(), bytes(array), static_cast<size_t>(shift) * size_of(array.dtype())) {}
    operator void*() const { return copy_.data(); }
    Array fetch() const {
      Array host = like_;
      EXPECT_TRUE(copy_.fetch(host.data())) << "the kernel wrote outside of the array";
      return host;
    }

   private:
    static size_t bytes(const Array& array) { return static_cast<size_t>(array.count()) * size_of(array.dtype()); }
    Array like_;
    GpuBuffer copy_;
  };

  template <typename I>
  struct GpuVector {
    GpuVector(GpuTest& test, const std::vector<I>& from) : copy(test, from.data(), from.size() * sizeof(I), 0) {}
    operator I*() const { return static_cast<I*>(copy.data()); }
    GpuBuffer copy;
  };

  device::Stream stream;

 private:
  std::unique_ptr<device::SegmentSource> memory_;
  std::unique_ptr<device::GpuQueue> queue_;
};

// Checks that ‖got − want‖ ≤ bound·‖want‖ and that all elements are finite. For long sums, in which terms may cancel.
inline void expect_close(const Array& got, const Array& want, double bound, const std::string& where) {
  ASSERT_EQ(got.count(), want.count()) << where;
  double error = 0, size = 0;
  for (int64_t i = 0; i < got.count(); ++i) {
    ASSERT_TRUE(std::isfinite(got[i]) || got[i] == want[i]) << where << ": element " << i << " is " << got[i];
    if (got[i] == want[i]) {
      if (std::isfinite(want[i])) size += want[i] * want[i];
      continue;
    }
    error += (got[i] - want[i]) * (got[i] - want[i]);
    size += want[i] * want[i];
  }
  EXPECT_LE(std::sqrt(error), bound * std::sqrt(size) + 1e-30)
      << where << ": norm of the expected array: " << std::sqrt(size);
}

// Relative error of rounding once to the type, plus a margin for the arithmetic before it.
inline double rounding(DType dtype) {
  return dtype == DType::bf16 ? 4e-3 : dtype == DType::f16 ? 5e-4 : dtype == DType::f32 ? 2e-6 : 1e-13;
}

}  // namespace esp::kernel
