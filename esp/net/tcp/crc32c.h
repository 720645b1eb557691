// CRC-32C (Castagnoli, reflected, as in iSCSI): guards frame headers always and payloads when asked.
#pragma once

#include <cstddef>
#include <cstdint>

namespace esp::net {

// Continues `crc` (0 to begin with) over more bytes, so that crc32c(crc32c(0, a), b) is that of a followed by b.
uint32_t crc32c(uint32_t crc, const void* data, size_t bytes);

// One table look-up per byte: what the fast one is held to, and what runs where the instruction is missing.
uint32_t crc32c_reference(uint32_t crc, const void* data, size_t bytes);

}  // namespace esp::net
