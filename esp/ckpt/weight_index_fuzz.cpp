// An index of shards from any bytes: refused, or read and written back equal, and never a path out of the folder.
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
