// Imports a DeepSpeed configuration from arbitrary bytes. The import throws an error with a message, or its run file
// reads back with the same keys.
#include <string_view>

#include "esp/base/error.h"
#include "esp/train/deepspeed.h"
#include "esp/train/run_config.h"

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  using namespace esp::train;
  if (size == 0) return 0;
  const std::string_view text(reinterpret_cast<const char*>(data) + 1, size - 1);
  try {
    const DeepSpeedImport imported = import_deepspeed(text, "fuzz", data[0] % 9);
    const std::string file = to_run_file(imported, "fuzz", "");
    // if the values contradict each other, run file and overrides must both be refused
    std::string by_file, by_overrides;
    try {
      by_file = to_toml(parse_run_config(file, "file", {}));
    } catch (const esp::UsageError&) {
    }
    try {
      by_overrides = to_toml(parse_run_config("", "none", imported.overrides()));
    } catch (const esp::UsageError&) {
    }
    if (by_file != by_overrides) __builtin_trap();
  } catch (const esp::UsageError&) {
  } catch (const esp::IoError&) {
  }
  return 0;
}
