#include "esp/plan/description.h"

#include <cmath>
#include <limits>
#include <sstream>

#include <fmt/format.h>
#include <nlohmann/json.hpp>

#include "esp/base/error.h"
#include "esp/base/table.h"
#include "esp/base/toml.h"
#include "esp/base/toml_text.h"

namespace esp::plan {
namespace {

constexpr int kMaxDepth = 8;

Json tree_of(const toml::node& node, std::string_view name, int depth) {
  if (depth > kMaxDepth)
    throw UsageError(fmt::format("{}: tables are nested too deeply; expected at most {} levels", name, kMaxDepth));
  if (const toml::table* table = node.as_table()) {
    Json object = Json::object();
    // appended without a search: the TOML parser has already rejected duplicate keys
    auto& rows = object.get_ref<Json::object_t&>();
    for (const auto& [key, value] : *table) rows.emplace_back(key.str(), tree_of(value, name, depth + 1));
    return object;
  }
  if (const toml::array* list = node.as_array()) {
    Json array = Json::array();
    for (const toml::node& one : *list) array.push_back(tree_of(one, name, depth + 1));
    return array;
  }
  if (const auto text = node.value_exact<std::string>()) return *text;
  if (const auto whole = node.value_exact<int64_t>()) return *whole;
  if (const auto real = node.value_exact<double>()) return *real;
  if (const auto truth = node.value_exact<bool>()) return *truth;
  std::ostringstream text;  // dates and times become text
  node.visit([&](const auto& value) { text << value; });
  return text.str();
}

[[noreturn]] void refuse(const std::string& where, const DescriptionKey& key, std::string_view expected,
                         const Json& given) {
  throw UsageError(fmt::format("{}: {}: got {}; expected {}", where, key.name, given.dump(), expected));
}

template <typename T>
T whole_number(const std::string& where, const DescriptionKey& key, const Json& given) {
  const bool fits = given.is_number_integer() && given.get<int64_t>() >= std::numeric_limits<T>::min() &&
                    given.get<int64_t>() <= std::numeric_limits<T>::max();
  if (!fits) refuse(where, key, "an integer", given);
  return given.get<T>();
}

void read_one(const std::string& where, const DescriptionKey& key, const Json& given) {
  std::visit(
      [&](auto* to) {
        using T = std::remove_pointer_t<decltype(to)>;
        if constexpr (std::is_same_v<T, bool>) {
          if (!given.is_boolean()) refuse(where, key, "true or false", given);
          *to = given.get<bool>();
        } else if constexpr (std::is_same_v<T, int> || std::is_same_v<T, int64_t>) {
          *to = whole_number<T>(where, key, given);
        } else if constexpr (std::is_same_v<T, double>) {
          if (!given.is_number()) refuse(where, key, "a number", given);
          const double value = given.get<double>() * key.unit;
          if (!std::isfinite(value) || value < 0) refuse(where, key, "a number >= 0", given);
          *to = value;
        } else if constexpr (std::is_same_v<T, std::string>) {
          if (!given.is_string()) refuse(where, key, "a string", given);
          *to = given.get<std::string>();
        } else if constexpr (std::is_same_v<T, std::vector<int>>) {
          if (!given.is_array()) refuse(where, key, "a list of integers", given);
          to->clear();
          for (const Json& one : given) to->push_back(whole_number<int>(where, key, one));
        } else {
          if (!given.is_array()) refuse(where, key, "a list of strings", given);
          to->clear();
          for (const Json& one : given) {
            if (!one.is_string()) refuse(where, key, "a list of strings", given);
            to->push_back(one.get<std::string>());
          }
        }
      },
      key.value);
}

}  // namespace

Json parse_description(std::string_view text, std::string_view name) {
  check_toml_text(text, name);
  try {
    return tree_of(toml::parse(text, name), name, 0);
  } catch (const TomlAssumption&) {
    throw UsageError(fmt::format("{}: a table name or a key starts with an invalid character", name));
  } catch (const toml::parse_error& error) {
    throw UsageError(
        fmt::format("{}:{}:{}: {}", name, error.source().begin.line, error.source().begin.column, error.description()));
  }
}

void read_keys(const Json& table, const std::string& where, const std::vector<DescriptionKey>& keys,
               const std::vector<std::string_view>& also) {
  if (!table.is_object()) throw UsageError(fmt::format("{}: got {}; expected a table", where, table.type_name()));
  for (const auto& [name, value] : table.items()) {
    const DescriptionKey* found = nullptr;
    for (const DescriptionKey& key : keys)
      if (key.name == name) found = &key;
    if (found) {
      read_one(where, *found, value);
      continue;
    }
    std::vector<std::string_view> known = names_of(keys);
    known.insert(known.end(), also.begin(), also.end());
    bool read_elsewhere = false;
    for (const std::string_view one : also) read_elsewhere = read_elsewhere || one == name;
    if (!read_elsewhere) unknown_name(fmt::format("key in {}", where), name, known);
  }
}

std::string write_keys(const std::vector<DescriptionKey>& keys) {
  std::string text;
  for (const DescriptionKey& key : keys) {
    Json value;
    std::visit(
        [&](auto* from) {
          using T = std::remove_pointer_t<decltype(from)>;
          if constexpr (std::is_same_v<T, double>) {
            value = *from / key.unit;
          } else {
            value = *from;
          }
        },
        key.value);
    text += fmt::format("{} = {}\n", key.name, value.dump());  // a JSON value is also a valid TOML value
  }
  return text;
}

}  // namespace esp::plan
