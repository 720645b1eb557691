// Comma-separated values as spreadsheets write them: quoted fields with commas, quotes and line breaks, either line
// ending, a byte order mark, blank lines. The first row is the header; other rows may have fewer or more fields.
#pragma once

#include <map>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

namespace esp::plan {

inline constexpr size_t kMaxCsvRows = 1'000'000;

// Splits the text into rows of cells. IoError for an unclosed quote or more than kMaxCsvRows rows.
std::vector<std::vector<std::string>> parse_csv(std::string_view text, std::string_view name);

// One row; cells are read by column name. Surrounding spaces are removed. A word for a missing value (-, n/a, none)
// reads as an empty cell.
class CsvRow {
 public:
  CsvRow(const std::vector<std::string>& head, const std::vector<std::string>& cells);
  std::string text(std::string_view column) const;   // the cell; empty if missing
  std::string words(std::string_view column) const;  // the cell in lower case
  // The number at the start of a cell: "1,024", "~3.5", "2 (inferred)"; "8k" is 8192. nullopt if it is missing or
  // outside [low, high].
  std::optional<double> number(std::string_view column, double low = 0, double high = 1e18) const;

 private:
  std::map<std::string, std::string, std::less<>> cells_;
};

}  // namespace esp::plan
