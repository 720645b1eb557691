#include "esp/data/permutation.h"

#include <bit>

#include "esp/base/check.h"
#include "esp/base/rng.h"

namespace esp::data {
namespace {

// separates the keys of permutations from all other random numbers
constexpr uint64_t kKeysOfPermutation = 0x64617461'7065726d;

// Murmur3's finaliser: every input bit reaches every output bit.
uint64_t mix(uint64_t x) {
  x = (x ^ (x >> 33)) * 0xff51afd7ed558ccdULL;
  x = (x ^ (x >> 33)) * 0xc4ceb9fe1a85ec53ULL;
  return x ^ (x >> 33);
}

}  // namespace

Permutation::Permutation(uint64_t size, uint64_t seed, uint64_t stream) : size_(size) {
  ESP_CHECK(size > 0);
  half_bits_ = (std::bit_width(size - 1) + 1) / 2;
  for (int round = 0; round < kRounds; ++round)
    keys_[round] = random_bits(seed, kKeysOfPermutation + stream, size * kRounds + static_cast<uint64_t>(round));
}

uint64_t Permutation::operator()(uint64_t index) const {
  ESP_CHECK(index < size_, "permutation: got index {}; expected less than {}", index, size_);
  if (size_ == 1) return 0;
  const uint64_t mask = (uint64_t{1} << half_bits_) - 1;
  do {
    uint64_t left = index >> half_bits_, right = index & mask;
    for (uint64_t key : keys_) {
      uint64_t next = left ^ (mix(right ^ key) & mask);
      left = right;
      right = next;
    }
    index = (left << half_bits_) | right;
  } while (index >= size_);
  return index;
}

uint64_t Permutation::inverse(uint64_t element) const {
  ESP_CHECK(element < size_, "permutation: got element {}; expected less than {}", element, size_);
  if (size_ == 1) return 0;
  const uint64_t mask = (uint64_t{1} << half_bits_) - 1;
  do {
    uint64_t left = element >> half_bits_, right = element & mask;
    for (int round = kRounds - 1; round >= 0; --round) {
      uint64_t before = right ^ (mix(left ^ keys_[round]) & mask);
      right = left;
      left = before;
    }
    element = (left << half_bits_) | right;
  } while (element >= size_);
  return element;
}

}  // namespace esp::data
