// A rank's part from any bytes: refused, or read and written back equal; merged alone, it is a manifest.
#include <string_view>

#include "esp/base/error.h"
#include "esp/ckpt/part.h"

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  using namespace esp::ckpt;
  try {
    const Part part = parse_part({reinterpret_cast<const char*>(data), size}, "fuzz");
    const std::string text = to_json(part);
    if (to_json(parse_part(text, "again")) != text) __builtin_trap();
    Merged merged;
    try {
      merged = merge({part});
    } catch (const esp::IoError&) {
      return 0;
    }
    if (merged.manifest.files.size() != part.manifest.files.size()) __builtin_trap();
    const std::string all = to_json(merged.manifest);
    try {
      if (to_json(parse_manifest(all, "merged")) != all) __builtin_trap();
    } catch (const esp::IoError&) {
      __builtin_trap();
    }
  } catch (const esp::IoError&) {
  }
  return 0;
}
