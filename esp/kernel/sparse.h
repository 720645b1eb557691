// Sparse selection (top-k, threshold, random-k), and the inverse scatter.
//
// Magnitudes are compared as bit patterns, so a NaN is larger than every number and is always selected. Supports f32
// and f64. Indices ascend unless a comment says otherwise. Indices and values need no alignment. Scratch memory belongs
// to the calling thread, grows to the largest call and is reused. The functions run on one thread.
#pragma once

#include <cstddef>
#include <cstdint>

#include "esp/base/dtype.h"
#include "esp/device/stream.h"
#include "esp/kernel/write_mode.h"

namespace esp::kernel {

// Selects the k largest magnitudes; ties go to lower indices. `indices` receives k uint32, `values` receives k elements
// of dtype. 0 ≤ k ≤ count < 2^32. Usually one pass over x is enough: a sample gives a threshold that limits the
// candidates, and an exact selection among the candidates follows. The worst case is a few passes (radix selection), so
// the time is always O(count).
void top_k(void* indices, void* values, const void* x, int64_t count, int64_t k, DType dtype,
           const device::Stream& stream);

// Selects elements with |x| > threshold. Returns their number. The outputs must have room for `count` elements.
int64_t select_above(void* indices, void* values, const void* x, int64_t count, double threshold, DType dtype,
                     const device::Stream& stream);

// Writes sparse values to the `count` elements of y. With WriteMode::overwrite all other elements become 0. Returns
// false if the indices do not strictly ascend or are not below `count`; y is then partly written.
bool scatter_sparse(void* y, WriteMode into, const void* indices, const void* values, int64_t k, int64_t count,
                    DType dtype, const device::Stream& stream);

// Random-k: distinct random coordinates below `count`, in no particular order, as a function of (seed, purpose). They
// come from a Feistel permutation keyed by Philox, plus a uniform random offset modulo `count`. Because of the offset,
// every coordinate is selected with probability k/count for any permutation.
class RandomCoordinates {
 public:
  RandomCoordinates(int64_t count, uint64_t seed, uint64_t purpose);
  int64_t operator[](int64_t j) const;  // requires j < count

 private:
  static constexpr int kRounds = 6;
  uint64_t permuted(uint64_t j) const;
  uint64_t count_, offset_, mask_;
  int half_ = 1;
  uint64_t add_[kRounds], multiply_[kRounds];
};
// gather_coordinates: values[j] = factor·x[coordinates[j]]. scatter_coordinates writes values[j] to y[coordinates[j]].
void gather_coordinates(void* values, const void* x, const RandomCoordinates& coordinates, int64_t k, double factor,
                        DType dtype);
void scatter_coordinates(void* y, WriteMode into, const void* values, const RandomCoordinates& coordinates, int64_t k,
                         int64_t count, DType dtype, const device::Stream& stream);

namespace ref {
void top_k(void* indices, void* values, const void* x, int64_t count, int64_t k, DType dtype);
int64_t select_above(void* indices, void* values, const void* x, int64_t count, double threshold, DType dtype);
}  // namespace ref

}  // namespace esp::kernel
