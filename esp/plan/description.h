// TOML descriptions. Text is parsed into a tree. A list of DescriptionKey then reads one table of the tree into a
// struct, or writes a struct as text. Errors: an unknown key (the nearest known key is suggested), and a number that is
// not finite.
#pragma once

#include <string>
#include <string_view>
#include <variant>
#include <vector>

#include "esp/base/json.h"

namespace esp::plan {

// Parses TOML. UsageError with line and column. Dates become text. Nesting depth and size are limited.
Json parse_description(std::string_view text, std::string_view name);

struct DescriptionKey {
  std::string_view name;
  std::variant<bool*, int*, int64_t*, double*, std::string*, std::vector<int>*, std::vector<std::string>*> value;
  double unit = 1;  // for doubles: member = value in the file · unit
};

// Reads the keys that the table contains; absent keys leave their members unchanged. `also`: further allowed keys,
// which the caller reads.
void read_keys(const Json& table, const std::string& where, const std::vector<DescriptionKey>& keys,
               const std::vector<std::string_view>& also = {});
// The keys as lines "name = value", in the order of `keys`.
std::string write_keys(const std::vector<DescriptionKey>& keys);

}  // namespace esp::plan
