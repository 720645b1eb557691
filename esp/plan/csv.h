// Comma-separated values as spreadsheets write them: quoted fields with commas, quotes and line breaks inside, either
// line ending, a byte order mark, blank lines. A table has a head; rows may be shorter than it or longer.
#pragma once

#include <map>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

namespace esp::plan {

inline constexpr size_t kMaxCsvRows = 1'000'000;

// UsageError: a quote never closed, more rows than kMaxCsvRows.
std::vector<std::vector<std::string>> parse_csv(std::string_view text, std::string_view name);

// One row by its column's name. Spaces around are gone, and so is whatever means "not given" (-, n/a, none is kept).
class CsvRow {
 public:
  CsvRow(const std::vector<std::string>& head, const std::vector<std::string>& cells);
  std::string text(std::string_view column) const;   // empty where it is not given
  std::string words(std::string_view column) const;  // the same in lower case
  // The number a cell begins with ("1,024", "~3.5", "2 (inferred)", "8k" is 8192); none where there is none, or where
  // it is not within the bounds.
  std::optional<double> number(std::string_view column, double low = 0, double high = 1e18) const;

 private:
  std::map<std::string, std::string, std::less<>> cells_;
};

}  // namespace esp::plan
