// A pseudo-random permutation of [0, n) as a function: it stores nothing, and every element costs the same.
//
// A balanced Feistel network over the smallest even number of bits that holds n, repeated while the result is outside
// [0, n) (cycle walking, Black and Rogaway 2002). The domain is smaller than 4n, so at most four walks are expected.
#pragma once

#include <array>
#include <cstdint>

namespace esp::data {

class Permutation {
 public:
  // Different size, seed or stream give different permutations.
  Permutation(uint64_t size, uint64_t seed, uint64_t stream);

  uint64_t size() const { return size_; }
  uint64_t operator()(uint64_t index) const;  // index < size
  uint64_t inverse(uint64_t element) const;   // inverse(p(i)) == i

 private:
  static constexpr int kRounds = 8;
  uint64_t size_;
  int half_bits_;
  std::array<uint64_t, kRounds> keys_;
};

}  // namespace esp::data
