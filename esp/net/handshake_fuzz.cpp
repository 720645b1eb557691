// Fuzz target: feeds arbitrary bytes, split at arbitrary positions, to both sides of the handshake. A side may reach
// `done` only after a correct proof. It consumes no byte beyond bytes_needed() and throws only CommError(refused).
#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <string>
#include <string_view>

#include "esp/net/handshake.h"

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  using namespace esp::net;
  if (size < 2) return 0;
  static const Secret secret(std::string(32, 's'));
  bool accepting = data[0] & 1;
  size_t piece = 1 + data[1];
  std::string_view bytes(reinterpret_cast<const char*>(data) + 2, size - 2);

  auto shake = accepting ? Handshake::make_callee(secret, "job") : Handshake::make_caller(secret, {});
  size_t taken = 0;
  try {
    if (!accepting) shake.feed("");
    while (!bytes.empty() && !shake.done()) {
      size_t count = std::min({piece, bytes.size(), shake.bytes_needed()});
      shake.feed(bytes.substr(0, count));
      bytes.remove_prefix(count);
      taken += count;
    }
    // Without the secret the fuzzer can reach this point only by breaking HMAC.
    if (shake.done()) std::abort();
  } catch (const esp::CommError& error) {
    if (error.kind() != esp::CommError::Kind::refused) std::abort();
  }
  if (taken > 1024) std::abort();
  return 0;
}
