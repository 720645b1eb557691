// Converts between Espalier checkpoints and Hugging Face folders. The output is written beside the destination and
// renamed when complete, so the destination never contains a part of the output.
#pragma once

#include <string>
#include <vector>

#include "esp/base/dtype.h"

namespace esp::train {

struct ConvertOptions {
  std::string layout;  // layout of the output, hf or espalier; empty: hf for a checkpoint, espalier for an hf folder
  std::string dtype;   // fp32 or bf16; empty: the dtype of the source
  uint64_t shard_bytes = uint64_t{4} << 30;
  int threads = 0;
};

struct Conversion {
  std::string from_layout, to_layout, arch;
  int64_t num_parameters = 0;  // number of parameters written
  DType dtype = DType::f32;
  std::vector<std::string> notes;  // one text per omitted tensor or file, with the reason
};

// `source` is any path that load_model can open. UsageError unless the destination does not exist or is an empty
// folder. An Espalier checkpoint made here contains parameters, tokenizer, Hugging Face settings and a run file, but no
// optimizer state.
Conversion convert(const std::string& source, const std::string& destination, const ConvertOptions& options = {});

}  // namespace esp::train
