// Parses a safetensors header from arbitrary bytes. The parser rejects them or returns a consistent header, and never
// crashes.
#include "esp/base/error.h"
#include "esp/ckpt/safetensors.h"

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  try {
    const auto header = esp::ckpt::parse_safetensors(std::as_bytes(std::span(data, size)), size, "fuzz");
    uint64_t total = header.data_begin;
    for (const auto& tensor : header.tensors) total += tensor.end - tensor.begin;
    if (total != size) __builtin_trap();
  } catch (const esp::IoError&) {
  }
  return 0;
}
