// Choices by name. A table is a constant array of rows with a `name`; an unknown name is an error that lists the known
// ones and suggests the nearest.
#pragma once

#include <initializer_list>
#include <string>
#include <string_view>
#include <vector>

namespace esp {

// Throws UsageError: «unknown <what> "<name>"; did you mean "<nearest>"? Known: a, b, c».
[[noreturn]] void unknown_name(std::string_view what, std::string_view name,
                               const std::vector<std::string_view>& known);

// The name in `known` with the smallest edit distance to `name`; empty when nothing is near.
std::string_view nearest_name(std::string_view name, const std::vector<std::string_view>& known);

template <typename Table>
std::vector<std::string_view> names_of(const Table& table) {
  std::vector<std::string_view> names;
  for (const auto& row : table) names.push_back(row.name);
  return names;
}

// `elsewhere`: names that are known too, though they are rows of no table.
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
