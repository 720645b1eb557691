// Comma-separated values as spreadsheets write them: quoted fields with commas, quotes and line breaks, either line
// ending, a byte order mark, blank lines. A table has a header; rows may have fewer or more fields.
#pragma once

#include <map>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

namespace esp::plan {

inline constexpr size_t kMaxCsvRows = 1'000'000;

// UsageError: an unclosed quote, more than kMaxCsvRows rows.
std::vector<std::vector<std::string>> parse_csv(std::string_view text, std::string_view name);

// One row by column name. Surrounding spaces are removed, and words for a missing value (-, n/a, none) become empty.
class CsvRow {
 public:
  CsvRow(const std::vector<std::string>& head, const std::vector<std::string>& cells);
  std::string text(std::string_view column) const;   // empty: missing
  std::string words(std::string_view column) const;  // the same in lower case
  // The number at the start of a cell ("1,024", "~3.5", "2 (inferred)", "8k" is 8192); none if missing or out of
  // bounds.
  std::optional<double> number(std::string_view column, double low = 0, double high = 1e18) const;

 private:
  std::map<std::string, std::string, std::less<>> cells_;
};

}  // namespace esp::plan
