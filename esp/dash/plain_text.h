// Text from files and strangers, made fit to be put into JSON: UTF-8 or not, quoted, cut into the fields of a line.
//
// The readers here are for what a dashboard reads by the hundred thousand lines and need not hold as a tree: they walk
// over the text once and allocate nothing. They take anything; what is no object gives false.
#pragma once

#include <functional>
#include <optional>
#include <string>
#include <string_view>

namespace esp::dash {

bool is_utf8(std::string_view text);
// With quotes, escaped; what is no UTF-8 becomes U+FFFD. Also safe inside a <script> of a page: no '<' is left.
std::string json_quoted(std::string_view text);
// "null" for what JSON cannot say; seven digits, which a picture does not outresolve.
void append_number(std::string& out, double value);
void append_exact(std::string& out, double value);  // seventeen

// The fields of one JSON object: the key without quotes (escapes left as they are) and the value's own text. False when
// the text is not one object, or one nested deeper than 32; fields before the damage have been seen.
bool for_each_field(std::string_view object,
                    const std::function<void(std::string_view key, std::string_view value)>& f);
size_t skip_space(std::string_view text, size_t at);
// Behind the closing quote of the string that begins at `at`, or npos.
size_t string_end(std::string_view text, size_t at);
// The value from `at` on: its end, or npos.
size_t value_end(std::string_view text, size_t at);

std::optional<double> number_of(std::string_view value);  // true and false are 1 and 0
std::string string_of(std::string_view value);            // of a quoted one; escapes resolved

// The fields of the object that begins at `at`: its end, or npos. Here to be inlined: a trace has millions of objects.
template <typename Take>  // (key, value)
size_t walk_object(std::string_view text, size_t at, const Take& take) {
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
    take(key, text.substr(at, value - at));
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
