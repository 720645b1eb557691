// Hash functions for the tables of this folder: fast, not cryptographic. Keys come from untrusted files and text, so
// every table bounds its probes by its size, and no table grows because of collisions.
#pragma once

#include <cstdint>
#include <cstring>
#include <string_view>

namespace esp::data {

__extension__ using Uint128 = unsigned __int128;

inline uint64_t mix(uint64_t a, uint64_t b) {
  Uint128 product = static_cast<Uint128>(a ^ 0x9E3779B97F4A7C15u) * (b ^ 0xC2B2AE3D27D4EB4Fu);
  return static_cast<uint64_t>(product) ^ static_cast<uint64_t>(product >> 64);
}

inline uint64_t hash_bytes(std::string_view bytes) {
  uint64_t hash = bytes.size();
  const char* at = bytes.data();
  size_t left = bytes.size();
  for (; left >= 8; at += 8, left -= 8) {
    uint64_t word;
    std::memcpy(&word, at, 8);
    hash = mix(hash, word);
  }
  uint64_t tail = 0;
  if (left) std::memcpy(&tail, at, left);
  return mix(hash, tail);
}

}  // namespace esp::data
