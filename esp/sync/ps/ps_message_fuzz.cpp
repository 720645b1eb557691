// Fuzz test: decodes arbitrary bytes as a message. decode_message must throw an error, or return a message that encodes
// to the same bytes.
#include <cstdlib>
#include <cstring>

#include "esp/base/error.h"
#include "esp/sync/ps/application_order.h"
#include "esp/sync/ps/message.h"

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  using namespace esp::sync;
  const auto* bytes = reinterpret_cast<const std::byte*>(data);
  try {
    const MessageBytes again = encode(decode_message({bytes, size}));
    if (std::memcmp(again.data(), bytes, size) != 0) std::abort();
  } catch (const esp::CommError& error) {
    if (error.kind() != esp::CommError::Kind::corrupt) std::abort();
  }
  try {
    const std::string_view text(reinterpret_cast<const char*>(data), size);
    const auto events = parse_order(text, "fuzz");
    if (parse_order(write_order(events), "again") != events) std::abort();
  } catch (const esp::UsageError&) {
  }
  return 0;
}
