#include "esp/kernel/split_master.h"

#include <cstring>

namespace esp::kernel {
namespace {

constexpr int64_t kGrain = 4096;
constexpr uint32_t kHalf = 0x8000;

}  // namespace

void split_master_weights(uint16_t* low, const float* x, int64_t count, const device::Stream& stream) {
  device::parallel_for(stream, count, kGrain, [=](int64_t begin, int64_t end) {
    for (int64_t i = begin; i < end; ++i) {
      uint32_t bits;
      std::memcpy(&bits, x + i, sizeof bits);
      const uint32_t rest = bits & 0xffff, odd = (bits >> 16) & 1;
      low[i] = static_cast<uint16_t>(rest == kHalf ? kHalf - 1 + 2 * odd : rest);
    }
  });
}

void join_master_weights(float* x, const void* high, const uint16_t* low, int64_t count, const device::Stream& stream) {
  const auto* rounded = static_cast<const uint16_t*>(high);
  device::parallel_for(stream, count, kGrain, [=](int64_t begin, int64_t end) {
    for (int64_t i = begin; i < end; ++i) {
      // The bf16 was rounded up, so the upper half of the original number is one less than the bf16
      const uint32_t rest = low[i], up = rest > kHalf ? 1 : 0;
      const uint32_t bits = ((static_cast<uint32_t>(rounded[i]) - up) << 16) | rest;
      std::memcpy(x + i, &bits, sizeof bits);
    }
  });
}

}  // namespace esp::kernel
