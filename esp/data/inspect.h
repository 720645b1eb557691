// What a file of data is, for people who want to know before they train on it.
#pragma once

#include <cstdint>
#include <optional>
#include <string>

#include "esp/data/inputs.h"
#include "esp/data/source.h"

namespace esp::data {

struct DataInfo {
  std::string path, format, type;  // type: of the tokens; empty for text
  uint64_t bytes = 0;
  std::optional<uint64_t> tokens, documents;
  std::optional<int64_t> max_id;
};

// Reads headers and checks them; `whole` also reads every token (max_id) or record (documents).
DataInfo inspect(const Input& input, std::optional<TokenType> bin_type, bool whole);

}  // namespace esp::data
