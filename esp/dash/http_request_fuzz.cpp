// Requests of anybody on the machine: any bytes, understood or refused, and the gate on what was understood.
#include <cstdint>
#include <cstdlib>

#include "esp/dash/gate.h"
#include "esp/dash/plain_text.h"

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  using namespace esp::dash;
  const std::string_view text(reinterpret_cast<const char*>(data), size);
  const ParsedRequest parsed = parse_request(text);
  if (parsed.status != 0) return 0;
  // What was understood keeps the promises others build on.
  if (parsed.request.path.empty() || parsed.request.path[0] != '/' || !is_utf8(parsed.request.path)) std::abort();
  for (const auto& [name, value] : parsed.request.query)
    if (!is_utf8(name) || !is_utf8(value)) std::abort();
  (void)parsed.request.number("from", 0);
  std::string inner;
  static const Gate gate("token", 8080);
  if (!gate.refusal(parsed.request, inner) && !parsed.request.path.starts_with("/token/")) std::abort();
  return 0;
}
