// Lookup of named choices. A table is a constant array of rows with a `name`. An unknown name is an error that lists
// the known names and suggests the nearest.
#pragma once

#include <initializer_list>
#include <string>
#include <string_view>
#include <vector>

namespace esp {

// Throws UsageError: «unknown <what> "<name>"; did you mean "<nearest>"? Known: a, b, c».
[[noreturn]] void unknown_name(std::string_view what, std::string_view name,
                               const std::vector<std::string_view>& known);

// The name in `known` with the smallest edit distance to `name`; empty if none is similar.
std::string_view nearest_name(std::string_view name, const std::vector<std::string_view>& known);

template <typename Table>
std::vector<std::string_view> names_of(const Table& table) {
  std::vector<std::string_view> names;
  for (const auto& row : table) names.push_back(row.name);
  return names;
}

// Finds the row called `name`, or throws UsageError. `elsewhere`: valid names that are not in this table; the error
// lists them too.
template <typename Table>
auto& find_row(std::string_view what, const Table& table, std::string_view name,
               std::initializer_list<std::string_view> elsewhere = {}) {
  for (const auto& row : table)
    if (row.name == name) return row;
  auto known = names_of(table);
  known.insert(known.end(), elsewhere);
  unknown_name(what, name, known);
}

}  // namespace esp
