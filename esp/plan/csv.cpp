#include "esp/plan/csv.h"

#include <algorithm>
#include <cctype>
#include <cmath>
#include <cstdlib>

#include <fmt/format.h>

#include "esp/base/error.h"
#include "esp/plan/normalise.h"

namespace esp::plan {
namespace {

std::string trimmed(std::string_view text) {
  size_t begin = 0, end = text.size();
  while (begin < end && std::isspace(static_cast<unsigned char>(text[begin]))) ++begin;
  while (end > begin && std::isspace(static_cast<unsigned char>(text[end - 1]))) --end;
  return std::string(text.substr(begin, end - begin));
}

bool says_nothing(const std::string& cell) {
  const std::string word = lower_case(cell);
  return word.empty() || word == "-" || word == "n/a" || word == "na" || word == "nan" || word == "null" ||
         word == "unknown" || word == "?" || word == "not published";
}

// Returns the column separator: a comma, or a semicolon or tab if the first line has no comma.
char divider_of(std::string_view text) {
  const std::string_view head = text.substr(0, text.find_first_of("\r\n"));
  if (has(head, ",")) return ',';
  return has(head, ";") ? ';' : has(head, "\t") ? '\t' : ',';
}

// Another name of a column. Column names are normalised first: "Hidden size", "hidden-size" and "hidden_size" are
// equal.
struct Alias {
  std::string_view given, column;
};
constexpr Alias kAliases[] = {{"num_layers", "layers"},     {"n_layers", "layers"},        {"hidden_size", "hidden"},
                              {"d_model", "hidden"},        {"ffn_hidden_size", "ffn"},    {"intermediate_size", "ffn"},
                              {"num_heads", "heads"},       {"attention_heads", "heads"},  {"num_kv_heads", "kv_heads"},
                              {"seq_len", "seq"},           {"sequence_length", "seq"},    {"vocab_size", "vocab"},
                              {"num_experts", "experts"},   {"num_gpus", "gpus"},          {"global_batch_size", "gbs"},
                              {"global_batch", "gbs"},      {"micro_batch_size", "mbs"},   {"micro_batch", "mbs"},
                              {"step_time", "step_time_s"}, {"tokens_s_gpu", "tok_s_gpu"}, {"mfu", "mfu_pct"}};

std::string column_of(std::string_view head) {
  std::string name = lower_case(trimmed(head));
  std::replace_if(
      name.begin(), name.end(), [](char c) { return c == ' ' || c == '-'; }, '_');
  for (const Alias& one : kAliases)
    if (name == one.given) return std::string(one.column);
  return name;
}

}  // namespace

std::vector<std::vector<std::string>> parse_csv(std::string_view text, std::string_view name) {
  if (text.starts_with("\xEF\xBB\xBF")) text.remove_prefix(3);
  const char divider = divider_of(text);
  std::vector<std::vector<std::string>> rows;
  std::vector<std::string> row;
  std::string cell;
  bool quoted = false, begun = false;  // quoted: inside quotes; begun: the line has content
  size_t line = 1, opened = 0;
  const auto end_row = [&] {
    if (begun || !row.empty()) {
      row.push_back(std::move(cell));
      if (rows.size() >= kMaxCsvRows)
        throw IoError(fmt::format("{}: too many rows; expected at most {}. Split the file", name, kMaxCsvRows));
      rows.push_back(std::move(row));
    }
    row.clear();
    cell.clear();
    begun = false;
  };
  for (size_t i = 0; i < text.size(); ++i) {
    const char c = text[i];
    if (c == '\n') ++line;
    if (quoted) {
      if (c != '"') {
        cell += c;
      } else if (i + 1 < text.size() && text[i + 1] == '"') {
        cell += '"';
        ++i;
      } else {
        quoted = false;
      }
    } else if (c == '"' && cell.empty()) {
      quoted = begun = true;
      opened = line;
    } else if (c == divider) {
      row.push_back(std::move(cell));
      cell.clear();
      begun = true;
    } else if (c == '\n' || c == '\r') {
      end_row();
    } else {
      cell += c;
      begun = true;
    }
  }
  if (quoted)
    throw IoError(
        fmt::format("{}:{}: a quoted field starts in this line and is never closed. Add the missing \"", name, opened));
  end_row();
  return rows;
}

CsvRow::CsvRow(const std::vector<std::string>& head, const std::vector<std::string>& cells) {
  for (size_t i = 0; i < head.size() && i < cells.size(); ++i) {
    std::string cell = trimmed(cells[i]);
    if (!says_nothing(cell)) cells_.emplace(column_of(head[i]), std::move(cell));
  }
}

std::string CsvRow::text(std::string_view column) const {
  const auto found = cells_.find(column);
  return found == cells_.end() ? "" : found->second;
}

std::string CsvRow::words(std::string_view column) const {
  return lower_case(text(column));
}

std::optional<double> CsvRow::number(std::string_view column, double low, double high) const {
  std::string digits;
  bool begun = false;
  char after = 0;
  for (const char c : text(column)) {
    const bool part = std::isdigit(static_cast<unsigned char>(c)) || c == '.' || (!begun && c == '-') ||
                      (begun && (c == 'e' || c == 'E')) ||
                      (begun && (c == '-' || c == '+') && (digits.back() == 'e' || digits.back() == 'E'));
    if (part) {
      digits += c;
      begun = true;
    } else if (begun && c == ',') {
      continue;
    } else if (begun) {
      after = c;
      break;
    } else if (c != '~' && c != '<' && c != '>' && c != '=' && c != '$' && c != ' ') {
      return std::nullopt;
    }
  }
  char* end = nullptr;
  double value = std::strtod(digits.c_str(), &end);
  if (digits.empty() || end == digits.c_str()) return std::nullopt;
  if (after == 'k' || after == 'K') value *= 1024;
  if (!std::isfinite(value) || value < low || value > high) return std::nullopt;
  return value;
}

}  // namespace esp::plan
