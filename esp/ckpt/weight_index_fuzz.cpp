// Parses a shard index from arbitrary bytes. The parser either rejects them, or the index is unchanged after it is
// written and parsed again. An accepted index never contains a path outside the folder.
#include <string_view>

#include "esp/base/error.h"
#include "esp/ckpt/hf_folder.h"

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  using namespace esp::ckpt;
  try {
    const WeightIndex index = parse_weight_index({reinterpret_cast<const char*>(data), size}, "fuzz");
    for (const auto& [tensor, file] : index.file_of)
      if (file.find('/') != std::string::npos || file == "..") __builtin_trap();
    const WeightIndex again = parse_weight_index(to_json(index), "again");
    if (again.file_of != index.file_of || again.total_size != index.total_size) __builtin_trap();
  } catch (const esp::IoError&) {
  }
  return 0;
}
