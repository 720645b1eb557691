// A 64-bit fingerprint of memory, to find out whether two copies of a state are still the same.
//
// Blocks of 32 KiB are each mixed word by word, eight chains side by side; a word enters by xor and an odd
// multiplication, which undo each other, so a change of one word always changes its block. Blocks are added up, each
// mixed with its number: neither threads nor the order in which they come show. Not for enemies, who could choose
// changes that cancel; for flipped bits.
#pragma once

#include <cstddef>
#include <cstdint>

#include "esp/device/stream.h"

namespace esp::kernel {

// Of memory the host may read; on the stream's threads.
uint64_t fingerprint(const void* data, size_t bytes, const device::Stream& stream);

}  // namespace esp::kernel
