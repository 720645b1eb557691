// A 64-bit hash of memory, to check whether two replicas of a state are equal.
//
// Each block of 32 KiB is hashed word by word in eight chains. A word enters a chain by an xor and a multiplication by
// an odd number. Both are invertible, so a change of one word always changes the hash of its block. The block hashes
// are mixed with their index and added, so the result does not depend on the number of threads. Not cryptographic: it
// detects bit flips, not attacks.
#pragma once

#include <cstddef>
#include <cstdint>

#include "esp/device/stream.h"

namespace esp::kernel {

// `data` must be readable by the host. Runs on the threads of the stream.
uint64_t fingerprint(const void* data, size_t bytes, const device::Stream& stream);

}  // namespace esp::kernel
