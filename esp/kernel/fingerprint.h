// A 64-bit hash of memory, to check whether two copies of a state are equal.
//
// Each block of 32 KiB is hashed word by word in eight chains; a word enters by xor and an odd multiplication, both
// invertible, so a change of one word always changes its block. Block hashes are mixed with their index and added, so
// neither threads nor their order matter. Not cryptographic: it detects flipped bits, not attacks.
#pragma once

#include <cstddef>
#include <cstdint>

#include "esp/device/stream.h"

namespace esp::kernel {

// Host-readable memory; runs on the stream's threads.
uint64_t fingerprint(const void* data, size_t bytes, const device::Stream& stream);

}  // namespace esp::kernel
