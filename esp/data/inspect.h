// Describes a data file (format, number of tokens, documents) without training on it.
#pragma once

#include <cstdint>
#include <optional>
#include <string>

#include "esp/data/inputs.h"
#include "esp/data/source.h"

namespace esp::data {

struct DataInfo {
  std::string path, format, type;  // type: token type; empty for text
  uint64_t bytes = 0;
  std::optional<uint64_t> tokens, documents;
  std::optional<int64_t> max_id;
};

// Reads and checks the headers. `whole`: also reads every token (to find max_id) or every record (to count documents).
DataInfo inspect(const Input& input, std::optional<TokenType> bin_type, bool whole);

}  // namespace esp::data
