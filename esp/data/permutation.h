// A permutation of [0, n) as a function: nothing is stored and any element costs the same.
//
// A balanced Feistel network over the smallest even number of bits that holds n, applied again while the result is
// outside [0, n) (cycle walking, Black and Rogaway 2002). The domain is less than 4n, so four rounds of walking are
// expected at worst.
#pragma once

#include <array>
#include <cstdint>

namespace esp::data {

class Permutation {
 public:
  // Two permutations differ when any of size, seed or stream do.
  Permutation(uint64_t size, uint64_t seed, uint64_t stream);

  uint64_t size() const { return size_; }
  uint64_t operator()(uint64_t index) const;  // index < size
  uint64_t inverse(uint64_t element) const;   // the index that gives it

 private:
  static constexpr int kRounds = 8;
  uint64_t size_;
  int half_bits_;
  std::array<uint64_t, kRounds> keys_;
};

}  // namespace esp::data
