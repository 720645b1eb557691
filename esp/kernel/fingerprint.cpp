#include "esp/kernel/fingerprint.h"

#include <array>
#include <atomic>
#include <bit>
#include <cstring>

namespace esp::kernel {
namespace {

constexpr size_t kBlockBytes = size_t{32} << 10;
constexpr size_t kChains = 8;
constexpr uint64_t kOdd = 0x9e3779b97f4a7c15u;

uint64_t mixed(uint64_t x) {
  x = (x ^ (x >> 30)) * 0xbf58476d1ce4e5b9u;
  x = (x ^ (x >> 27)) * 0x94d049bb133111ebu;
  return x ^ (x >> 31);
}

uint64_t word_at(const std::byte* data) {
  uint64_t word;
  std::memcpy(&word, data, sizeof word);
  return word;
}

// Pads the last 64-byte line with zeros if it is incomplete. block_of also hashes the length, so padded data and data
// that ends with zeros have different hashes.
std::array<std::byte, kChains * 8> padded(const std::byte* data, size_t bytes) {
  std::array<std::byte, kChains * 8> line{};
  std::memcpy(line.data(), data, bytes);
  return line;
}

void take_line(std::array<uint64_t, kChains>& chains, const std::byte* line) {
  for (size_t lane = 0; lane < kChains; ++lane) {
    uint64_t next = chains[lane] ^ word_at(line + lane * 8);
    // The multiplication below maps a flip of the top bit to the same flip. Without the shift it would look like a flip
    // of one bit in the next 64-byte line.
    next ^= next >> 32;
    // Multiplication does not move high bits down. After the rotation, the multiplication of the next word mixes them.
    chains[lane] = std::rotr(next * kOdd, 29);
  }
}

uint64_t block_of(const std::byte* data, size_t bytes, uint64_t number) {
  std::array<uint64_t, kChains> chains;
  for (size_t lane = 0; lane < kChains; ++lane) chains[lane] = lane;
  size_t at = 0;
  for (; at + kChains * 8 <= bytes; at += kChains * 8) take_line(chains, data + at);
  if (at < bytes) take_line(chains, padded(data + at, bytes - at).data());
  uint64_t all = mixed(number + 1) ^ bytes;
  for (const uint64_t chain : chains) all = mixed((all ^ chain) * kOdd);
  return all;
}

}  // namespace

uint64_t fingerprint(const void* data, size_t bytes, const device::Stream& stream) {
  const auto* from = static_cast<const std::byte*>(data);
  const auto num_blocks = static_cast<int64_t>((bytes + kBlockBytes - 1) / kBlockBytes);
  std::atomic<uint64_t> sum{bytes};
  device::parallel_for(stream, num_blocks, 8, [&](int64_t begin, int64_t end) {
    uint64_t own = 0;
    for (int64_t block = begin; block < end; ++block) {
      const size_t at = static_cast<size_t>(block) * kBlockBytes;
      own += block_of(from + at, std::min(kBlockBytes, bytes - at), static_cast<uint64_t>(block));
    }
    sum.fetch_add(own, std::memory_order_relaxed);
  });
  return mixed(sum.load());
}

}  // namespace esp::kernel
