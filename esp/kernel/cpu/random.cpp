#include <cmath>
#include <numbers>

#include "esp/base/rng.h"
#include "esp/kernel/elementwise.h"
#include "esp/kernel/floating.h"

namespace esp::kernel {

void fill_normal(void* x, double mean, double std, uint64_t seed, uint64_t purpose, int64_t first, int64_t count,
                 DType dtype, const device::Stream& stream) {
  with_floating(dtype, [&]<typename T>(std::type_identity<T>) {
    device::parallel_for(stream, count, 4096, [&](int64_t begin, int64_t end) {
      for (int64_t i = begin; i < end; ++i) {
        const uint64_t bits = random_bits(seed, purpose, static_cast<uint64_t>(first + i));
        const double u = (static_cast<double>(bits >> 32) + 0.5) * 0x1p-32;
        const double angle = static_cast<double>(bits & 0xffffffffu) * 0x1p-32 * 2 * std::numbers::pi;
        const double normal = std::sqrt(-2 * std::log(u)) * std::cos(angle);
        static_cast<T*>(x)[i] = static_cast<T>(static_cast<Accumulator<T>>(mean + std * normal));
      }
    });
  });
}

void fill_uniform(void* x, double low, double high, uint64_t seed, uint64_t purpose, int64_t first, int64_t count,
                  DType dtype, const device::Stream& stream) {
  with_floating(dtype, [&]<typename T>(std::type_identity<T>) {
    device::parallel_for(stream, count, 4096, [&](int64_t begin, int64_t end) {
      for (int64_t i = begin; i < end; ++i) {
        const double unit = random_unit(seed, purpose, static_cast<uint64_t>(first + i));
        static_cast<T*>(x)[i] = static_cast<T>(static_cast<Accumulator<T>>(low + (high - low) * unit));
      }
    });
  });
}

}  // namespace esp::kernel
