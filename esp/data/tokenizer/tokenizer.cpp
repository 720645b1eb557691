#include "esp/data/tokenizer/tokenizer.h"

#include <fmt/format.h>

#include "esp/base/error.h"

namespace esp::data {

std::vector<int32_t> encode(const Tokenizer& tokenizer, std::string_view text) {
  std::vector<int32_t> ids;
  tokenizer.encode(text, ids);
  return ids;
}

std::unique_ptr<Tokenizer> load_tokenizer(const std::string& path_or_name, std::string_view) {
  if (path_or_name == "byte") return make_byte_tokenizer();
  throw IoError(fmt::format("tokenizer {}: no such file", path_or_name));
}

}  // namespace esp::data
