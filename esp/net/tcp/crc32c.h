// CRC-32C (Castagnoli, reflected, as in iSCSI). It protects frame headers always, and payloads if configured.
#pragma once

#include <cstddef>
#include <cstdint>

namespace esp::net {

// Continues `crc` (initially 0) over more bytes: crc32c(crc32c(0, a), b) equals the CRC of a followed by b.
uint32_t crc32c(uint32_t crc, const void* data, size_t bytes);

// Reference implementation with one table look-up per byte: for tests, and for CPUs without the instruction.
uint32_t crc32c_reference(uint32_t crc, const void* data, size_t bytes);

}  // namespace esp::net
