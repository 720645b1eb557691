// JSON text without building a tree: UTF-8 validation, quoting, and scanning of untrusted text.
//
// The scanners are for logs with hundreds of thousands of lines: they pass over the text once and do not allocate. They
// accept any input, and report failure for text that is not an object.
#pragma once

#include <functional>
#include <optional>
#include <string>
#include <string_view>

namespace esp::dash {

bool is_utf8(std::string_view text);
// Quotes and escapes a string. Invalid UTF-8 becomes U+FFFD. Safe inside a <script> element: '<' is escaped too.
std::string quote_json(std::string_view text);
// Appends the number with seven significant digits, which is enough for plots. NaN and infinity become "null".
void append_number(std::string& out, double value);
void append_exact_number(std::string& out, double value);  // appends seventeen digits

// Calls f for each field of one JSON object, with the key without quotes (escapes kept) and the raw text of the value.
// False: the text is not exactly one object, or is nested deeper than 32. Fields before the error have been passed to
// f.
bool for_each_field(std::string_view object,
                    const std::function<void(std::string_view key, std::string_view value)>& f);
size_t skip_space(std::string_view text, size_t at);
// Position after the closing quote of the string that begins at `at`, or npos.
size_t string_end(std::string_view text, size_t at);
// Position after the value that begins at `at`, or npos.
size_t value_end(std::string_view text, size_t at);

std::optional<double> parse_number(std::string_view value);  // true and false are 1 and 0
std::string parse_string(std::string_view value);            // value of a quoted string, escapes resolved

// Calls the given function for each field of the object that begins at `at`. Returns the position after the object, or
// npos. Inline, because a trace has millions of objects.
template <typename Take>  // (key, value)
size_t scan_object(std::string_view text, size_t at, const Take& read_events) {
  constexpr size_t kBroken = std::string_view::npos;
  if (at >= text.size() || text[at] != '{') return kBroken;
  at = skip_space(text, at + 1);
  if (at < text.size() && text[at] == '}') return at + 1;
  while (at < text.size() && text[at] == '"') {
    const size_t end = string_end(text, at);
    if (end == kBroken) return kBroken;
    const std::string_view key = text.substr(at + 1, end - at - 2);
    at = skip_space(text, end);
    if (at >= text.size() || text[at] != ':') return kBroken;
    at = skip_space(text, at + 1);
    const size_t value = value_end(text, at);
    if (value == kBroken) return kBroken;
    read_events(key, text.substr(at, value - at));
    at = skip_space(text, value);
    if (at >= text.size()) return kBroken;
    if (text[at] == '}') return at + 1;
    if (text[at] != ',') return kBroken;
    at = skip_space(text, at + 1);
  }
  return kBroken;
}

inline size_t skip_space(std::string_view text, size_t at) {
  while (at < text.size() && (text[at] == ' ' || text[at] == '\t' || text[at] == '\n' || text[at] == '\r')) ++at;
  return at;
}

inline size_t string_end(std::string_view text, size_t at) {
  for (size_t i = at + 1; i < text.size(); ++i) {
    if (text[i] == '\\')
      ++i;
    else if (text[i] == '"')
      return i + 1;
  }
  return std::string_view::npos;
}

}  // namespace esp::dash
