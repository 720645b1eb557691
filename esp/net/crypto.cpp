#include "esp/net/crypto.h"

#include <openssl/core_names.h>
#include <openssl/crypto.h>
#include <openssl/evp.h>
#include <openssl/hmac.h>
#include <openssl/kdf.h>
#include <openssl/params.h>
#include <openssl/rand.h>

#include <memory>

#include "esp/base/check.h"

namespace esp::net {
namespace {

const unsigned char* data_of(std::string_view bytes) {
  return reinterpret_cast<const unsigned char*>(bytes.data());
}
unsigned char* data_of(std::string& bytes) {
  return reinterpret_cast<unsigned char*>(bytes.data());
}

}  // namespace

std::string sha256(std::string_view bytes) {
  std::string digest(kDigestBytes, '\0');
  int ok = EVP_Digest(bytes.data(), bytes.size(), data_of(digest), nullptr, EVP_sha256(), nullptr);
  ESP_CHECK(ok == 1, "SHA-256 failed");
  return digest;
}

std::string hmac_sha256(std::string_view key, std::string_view bytes) {
  std::string digest(kDigestBytes, '\0');
  unsigned length = 0;
  auto* done = HMAC(EVP_sha256(), key.data(), static_cast<int>(key.size()), data_of(bytes), bytes.size(),
                    data_of(digest), &length);
  ESP_CHECK(done != nullptr && length == kDigestBytes, "HMAC-SHA-256 failed");
  return digest;
}

std::string hkdf_sha256(std::string_view secret, std::string_view salt, std::string_view purpose) {
  std::unique_ptr<EVP_KDF, decltype(&EVP_KDF_free)> kdf(EVP_KDF_fetch(nullptr, "HKDF", nullptr), EVP_KDF_free);
  ESP_CHECK(kdf != nullptr, "OpenSSL has no HKDF");
  std::unique_ptr<EVP_KDF_CTX, decltype(&EVP_KDF_CTX_free)> context(EVP_KDF_CTX_new(kdf.get()), EVP_KDF_CTX_free);
  ESP_CHECK(context != nullptr, "OpenSSL has no memory for HKDF");
  char digest[] = "SHA256";
  auto octets = [](const char* name, std::string_view bytes) {
    return OSSL_PARAM_construct_octet_string(name, const_cast<char*>(bytes.data()), bytes.size());
  };
  OSSL_PARAM parameters[] = {OSSL_PARAM_construct_utf8_string(OSSL_KDF_PARAM_DIGEST, digest, 0),
                             octets(OSSL_KDF_PARAM_KEY, secret), octets(OSSL_KDF_PARAM_SALT, salt),
                             octets(OSSL_KDF_PARAM_INFO, purpose), OSSL_PARAM_construct_end()};
  std::string key(kDigestBytes, '\0');
  ESP_CHECK(EVP_KDF_derive(context.get(), data_of(key), key.size(), parameters) == 1, "HKDF failed");
  return key;
}

std::string random_bytes(size_t count) {
  std::string bytes(count, '\0');
  ESP_CHECK(RAND_bytes(data_of(bytes), static_cast<int>(count)) == 1, "random bytes are not available");
  return bytes;
}

bool equal_in_constant_time(std::string_view a, std::string_view b) {
  return a.size() == b.size() && CRYPTO_memcmp(a.data(), b.data(), a.size()) == 0;
}

void wipe(std::string& bytes) {
  OPENSSL_cleanse(bytes.data(), bytes.size());
}

std::string to_hex(std::string_view bytes) {
  std::string text;
  text.reserve(2 * bytes.size());  // a string that grows leaves copies in freed memory
  for (unsigned char byte : bytes) text += fmt::format("{:02x}", byte);
  return text;
}

}  // namespace esp::net
