// TOML descriptions: a text becomes a tree, and a table of keys reads one of its tables into a struct or writes it
// back. An unknown key is an error with the nearest known one; so is a value that is not a finite number.
#pragma once

#include <string>
#include <string_view>
#include <variant>
#include <vector>

#include "esp/base/json.h"

namespace esp::plan {

// UsageError with line and column. Dates become text; depth and size are limited.
Json parse_description(std::string_view text, std::string_view name);

struct Key {
  std::string_view name;
  std::variant<bool*, int*, int64_t*, double*, std::string*, std::vector<int>*, std::vector<std::string>*> value;
  double unit = 1;  // of a double: member = value in the file × unit
};

// Reads the keys that are present. `also`: keys of the table that the caller reads itself.
void read_keys(const Json& table, const std::string& where, const std::vector<Key>& keys,
               const std::vector<std::string_view>& also = {});
// "name = value" lines, in the order of the keys.
std::string write_keys(const std::vector<Key>& keys);

}  // namespace esp::plan
