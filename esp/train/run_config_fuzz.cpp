// Parses a run file from arbitrary bytes. The parser throws an error with a message, or the config stays equal after it
// is written and read again.
#include <string_view>

#include "esp/base/error.h"
#include "esp/train/run_config.h"

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  using namespace esp::train;
  try {
    const RunConfig config = parse_run_config({reinterpret_cast<const char*>(data), size}, "fuzz", {});
    const std::string text = to_toml(config);
    if (to_toml(parse_run_config(text, "again", {})) != text) __builtin_trap();
  } catch (const esp::UsageError&) {
  }
  return 0;
}
