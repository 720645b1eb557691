// Cryptographic functions over OpenSSL: SHA-256, HMAC-SHA-256, HKDF, random bytes, and constant-time comparison.
#pragma once

#include <cstddef>
#include <string>
#include <string_view>

namespace esp::net {

inline constexpr size_t kDigestBytes = 32;

std::string sha256(std::string_view bytes);
std::string hmac_sha256(std::string_view key, std::string_view bytes);
// Derives 32 bytes for `purpose` from `secret` (HKDF, RFC 5869, SHA-256).
std::string hkdf_sha256(std::string_view secret, std::string_view salt, std::string_view purpose);
std::string random_bytes(size_t count);
bool equal_in_constant_time(std::string_view a, std::string_view b);
void wipe(std::string& bytes);
std::string to_hex(std::string_view bytes);

}  // namespace esp::net
