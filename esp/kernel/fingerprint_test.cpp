#include "esp/kernel/fingerprint.h"

#include <cstring>
#include <set>
#include <vector>

#include <gtest/gtest.h>

namespace esp::kernel {
namespace {

std::vector<std::byte> some_bytes(size_t count) {
  std::vector<std::byte> bytes(count);
  uint64_t state = 1;
  for (std::byte& one : bytes) {
    state = state * 6364136223846793005u + 1442695040888963407u;
    one = static_cast<std::byte>(state >> 56);
  }
  return bytes;
}

TEST(Fingerprint, DetectsEverySingleBitFlip) {
  std::vector<std::byte> bytes = some_bytes(1021);  // not a multiple of the 64-byte line that the hash reads
  std::set<uint64_t> seen{fingerprint(bytes.data(), bytes.size(), {})};
  for (size_t bit = 0; bit < bytes.size() * 8; ++bit) {
    bytes[bit / 8] ^= std::byte{1} << (bit % 8);
    EXPECT_TRUE(seen.insert(fingerprint(bytes.data(), bytes.size(), {})).second) << "bit " << bit;
    bytes[bit / 8] ^= std::byte{1} << (bit % 8);
  }
}

TEST(Fingerprint, DetectsSwappedBlocksAndTrailingZeros) {
  std::vector<std::byte> bytes = some_bytes(128 << 10);
  const uint64_t before = fingerprint(bytes.data(), bytes.size(), {});
  std::vector<std::byte> swapped = bytes;
  std::swap_ranges(swapped.begin(), swapped.begin() + (32 << 10), swapped.begin() + (64 << 10));
  EXPECT_NE(fingerprint(swapped.data(), swapped.size(), {}), before);
  bytes.resize(bytes.size() + 1);
  EXPECT_NE(fingerprint(bytes.data(), bytes.size(), {}), before);
}

TEST(Fingerprint, ResultIsIndependentOfThreadCount) {
  const std::vector<std::byte> bytes = some_bytes((3 << 20) + 5);
  device::ThreadPool three(3);
  device::Stream stream;
  stream.pool = &three;
  EXPECT_EQ(fingerprint(bytes.data(), bytes.size(), stream), fingerprint(bytes.data(), bytes.size(), {}));
}

}  // namespace
}  // namespace esp::kernel
