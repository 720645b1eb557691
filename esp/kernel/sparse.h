// Vectors of which few elements travel: choosing them by magnitude or by chance, and putting them back.
//
// Magnitudes are compared as bits, so a NaN is larger than everything and is never left behind. f32 and f64. Indices
// come out in rising order unless said, and may lie at any address, as may values. Scratch belongs to the calling
// thread, grows to the largest call seen and is then kept. One thread.
#pragma once

#include <cstddef>
#include <cstdint>

#include "esp/base/dtype.h"
#include "esp/device/stream.h"
#include "esp/kernel/into.h"

namespace esp::kernel {

// The k largest magnitudes, of equal ones those at lower indices: `indices` are k uint32, `values` k of dtype.
// 0 ≤ k ≤ count < 2^32. One pass over x for the usual k: a sample tells which elements can be among them, and an exact
// selection among those decides; at worst a few passes (radix selection), never more than O(count).
void top_k(void* indices, void* values, const void* x, int64_t count, int64_t k, DType dtype,
           const device::Stream& stream);

// Those with |x| > threshold. Returns how many; there must be room for all.
int64_t select_above(void* indices, void* values, const void* x, int64_t count, double threshold, DType dtype,
                     const device::Stream& stream);

// Into `y` of `count`; overwriting sets the others to 0. Returns false, with y in part written, when the indices do not
// rise strictly or reach `count`.
bool put_back(void* y, Into into, const void* indices, const void* values, int64_t k, int64_t count, DType dtype,
              const device::Stream& stream);

// k distinct coordinates of `count`, a function of (seed, purpose), in no order: a Feistel permutation keyed by Philox,
// rotated by a uniform amount, so each coordinate is taken with probability k/count whatever the permutation.
class RandomCoordinates {
 public:
  RandomCoordinates(int64_t count, uint64_t seed, uint64_t purpose);
  int64_t operator[](int64_t j) const;  // j < count

 private:
  static constexpr int kRounds = 6;
  uint64_t permuted(uint64_t j) const;
  uint64_t count_, offset_, mask_;
  int half_ = 1;
  uint64_t add_[kRounds], multiply_[kRounds];
};
// values[j] = factor·x[coordinates[j]]; and back.
void take_at(void* values, const void* x, const RandomCoordinates& coordinates, int64_t k, double factor, DType dtype);
void put_at(void* y, Into into, const void* values, const RandomCoordinates& coordinates, int64_t k, int64_t count,
            DType dtype, const device::Stream& stream);

namespace ref {
void top_k(void* indices, void* values, const void* x, int64_t count, int64_t k, DType dtype);
int64_t select_above(void* indices, void* values, const void* x, int64_t count, double threshold, DType dtype);
}  // namespace ref

}  // namespace esp::kernel
