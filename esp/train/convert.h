// Between Espalier checkpoints and Hugging Face folders. Everything is written beside the destination and renamed: a
// destination that exists is whole.
#pragma once

#include <string>
#include <vector>

#include "esp/base/dtype.h"

namespace esp::train {

struct ConvertOptions {
  std::string layout;  // hf or espalier; empty: the one the source does not have
  std::string dtype;   // fp32 or bf16; empty: as stored
  uint64_t shard_bytes = uint64_t{4} << 30;
  int threads = 0;
};

struct Conversion {
  std::string from_layout, to_layout, arch;
  int64_t num_parameters = 0;  // as written
  DType dtype = DType::f32;
  std::vector<std::string> notes;  // what was left out, and why
};

// `source` is anything load_model opens. The destination must not exist or be empty (UsageError otherwise). A
// checkpoint written so holds parameters, tokenizer, settings of the folder and a run file, and no optimizer state.
Conversion convert(const std::string& source, const std::string& destination, const ConvertOptions& options = {});

}  // namespace esp::train
