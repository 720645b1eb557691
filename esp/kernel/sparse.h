// Sparse selection: by magnitude or at random, and the inverse scatter.
//
// Magnitudes are compared as bits, so a NaN is larger than everything and is always selected. f32 and f64. Indices
// ascend unless stated; indices and values need no alignment. Scratch belongs to the calling thread, grows to the
// largest call and is kept. One thread.
#pragma once

#include <cstddef>
#include <cstdint>

#include "esp/base/dtype.h"
#include "esp/device/stream.h"
#include "esp/kernel/write_mode.h"

namespace esp::kernel {

// The k largest magnitudes, ties at lower indices first: `indices` are k uint32, `values` k of dtype. 0 ≤ k ≤ count <
// 2^32. Usually one pass over x: a sample bounds the candidates, and an exact selection among them decides; at worst a
// few passes (radix selection), never more than O(count).
void top_k(void* indices, void* values, const void* x, int64_t count, int64_t k, DType dtype,
           const device::Stream& stream);

// Elements with |x| > threshold. Returns their number; the outputs must have room for all.
int64_t select_above(void* indices, void* values, const void* x, int64_t count, double threshold, DType dtype,
                     const device::Stream& stream);

// Scatters into `y` of `count`; overwriting sets the others to 0. Returns false, with y partly written, if the indices
// do not strictly ascend or reach `count`.
bool scatter_sparse(void* y, WriteMode into, const void* indices, const void* values, int64_t k, int64_t count,
                    DType dtype, const device::Stream& stream);

// k distinct coordinates of `count`, a function of (seed, purpose), in no order: a Feistel permutation keyed by Philox,
// rotated by a uniform amount, so each coordinate is selected with probability k/count for any permutation.
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
// Gather: values[j] = factor·x[coordinates[j]]; and scatter.
void gather_at(void* values, const void* x, const RandomCoordinates& coordinates, int64_t k, double factor,
               DType dtype);
void scatter_at(void* y, WriteMode into, const void* values, const RandomCoordinates& coordinates, int64_t k,
                int64_t count, DType dtype, const device::Stream& stream);

namespace ref {
void top_k(void* indices, void* values, const void* x, int64_t count, int64_t k, DType dtype);
int64_t select_above(void* indices, void* values, const void* x, int64_t count, double threshold, DType dtype);
}  // namespace ref

}  // namespace esp::kernel
