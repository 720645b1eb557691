// Fuzzes the request parser and the AccessGuard with arbitrary bytes. Each request must be parsed or rejected.
#include <cstdint>
#include <cstdlib>

#include "esp/dash/access_guard.h"
#include "esp/dash/json_text.h"

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  using namespace esp::dash;
  const std::string_view text(reinterpret_cast<const char*>(data), size);
  const ParsedRequest parsed = parse_request(text);
  if (parsed.status != 0) return 0;
  // Checks the invariants of parsed requests that other code relies on.
  if (parsed.request.path.empty() || parsed.request.path[0] != '/' || !is_utf8(parsed.request.path)) std::abort();
  for (const auto& [name, value] : parsed.request.query)
    if (!is_utf8(name) || !is_utf8(value)) std::abort();
  (void)parsed.request.number("from", 0);
  std::string inner;
  static const AccessGuard guard("token", 8080);
  if (!guard.check(parsed.request, inner) && !parsed.request.path.starts_with("/token/")) std::abort();
  return 0;
}
