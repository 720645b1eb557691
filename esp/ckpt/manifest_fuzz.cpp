// Parses a manifest from arbitrary bytes. The parser either rejects them, or the manifest is unchanged after it is
// written and parsed again.
#include <string_view>

#include "esp/base/error.h"
#include "esp/ckpt/manifest.h"

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  try {
    const auto manifest = esp::ckpt::parse_manifest({reinterpret_cast<const char*>(data), size}, "fuzz");
    const std::string text = esp::ckpt::to_json(manifest);
    if (esp::ckpt::to_json(esp::ckpt::parse_manifest(text, "again")) != text) __builtin_trap();
  } catch (const esp::IoError&) {
  }
  return 0;
}
