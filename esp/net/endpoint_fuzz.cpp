// Fuzz target: parses arbitrary bytes as an endpoint. The result is either a UsageError, or a host and port that parse
// back from their own text.
#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>

#include <fmt/format.h>

#include "esp/base/check.h"
#include "esp/base/error.h"
#include "esp/net/address.h"

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  using namespace esp::net;
  try {
    const HostPort at = parse_endpoint({reinterpret_cast<const char*>(data), size});
    ESP_CHECK(!at.host.empty() && at.port >= 0 && at.port <= 65535);
    const HostPort again = parse_endpoint(fmt::format("tcp://[{}]:{}", at.host, at.port));
    ESP_CHECK(again.host == at.host && again.port == at.port);
  } catch (const esp::UsageError&) {
  }
  return 0;
}
