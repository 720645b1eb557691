// Parses a partial manifest from arbitrary bytes. The parser either rejects them, or the result is unchanged after it
// is written and parsed again. Merging this single partial manifest gives a valid manifest.
#include <string_view>

#include "esp/base/error.h"
#include "esp/ckpt/partial_manifest.h"

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  using namespace esp::ckpt;
  try {
    const PartialManifest part = parse_partial_manifest({reinterpret_cast<const char*>(data), size}, "fuzz");
    const std::string text = to_json(part);
    if (to_json(parse_partial_manifest(text, "again")) != text) __builtin_trap();
    MergedManifest merged;
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
