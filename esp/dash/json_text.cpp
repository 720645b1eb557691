#include "esp/dash/json_text.h"

#include <charconv>
#include <cmath>
#include <cstdint>

#include <fmt/format.h>

namespace esp::dash {
namespace {

constexpr int kMaxDepth = 32;

// Length in bytes of the UTF-8 character at `at`. 0: it is invalid (RFC 3629: no overlong forms, no surrogates).
size_t character_size(std::string_view text, size_t at) {
  const auto byte = [&](size_t i) { return at + i < text.size() ? static_cast<unsigned char>(text[at + i]) : 0u; };
  const auto follows = [&](size_t i, unsigned low = 0x80, unsigned high = 0xbf) {
    return byte(i) >= low && byte(i) <= high;
  };
  const unsigned first = byte(0);
  if (first < 0x80) return 1;
  if (first >= 0xc2 && first <= 0xdf) return follows(1) ? 2 : 0;
  if (first >= 0xe0 && first <= 0xef)
    return follows(1, first == 0xe0 ? 0xa0 : 0x80, first == 0xed ? 0x9f : 0xbf) && follows(2) ? 3 : 0;
  if (first >= 0xf0 && first <= 0xf4)
    return follows(1, first == 0xf0 ? 0x90 : 0x80, first == 0xf4 ? 0x8f : 0xbf) && follows(2) && follows(3) ? 4 : 0;
  return 0;
}

void append_utf8(std::string& out, uint32_t c) {
  if (c < 0x80) {
    out += static_cast<char>(c);
  } else if (c < 0x800) {
    out += static_cast<char>(0xc0 | (c >> 6));
    out += static_cast<char>(0x80 | (c & 0x3f));
  } else {
    if (c >= 0xd800 && c <= 0xdfff) c = 0xfffd;  // a surrogate without its other half
    out += static_cast<char>(0xe0 | (c >> 12));
    out += static_cast<char>(0x80 | ((c >> 6) & 0x3f));
    out += static_cast<char>(0x80 | (c & 0x3f));
  }
}

}  // namespace

bool is_utf8(std::string_view text) {
  for (size_t at = 0; at < text.size();) {
    const size_t size = character_size(text, at);
    if (size == 0) return false;
    at += size;
  }
  return true;
}

std::string quote_json(std::string_view text) {
  std::string out = "\"";
  for (size_t at = 0; at < text.size();) {
    const size_t size = character_size(text, at);
    const auto c = static_cast<unsigned char>(text[at]);
    if (size == 0) {
      out += "\xef\xbf\xbd";
    } else if (size > 1) {
      out += text.substr(at, size);
    } else if (c == '"' || c == '\\') {
      out += '\\';
      out += text[at];
    } else if (c < 0x20 || c == '<' || c == '>' || c == '&' || c == 0x7f) {
      out += fmt::format("\\u{:04x}", c);
    } else {
      out += text[at];
    }
    at += std::max<size_t>(size, 1);
  }
  return out + '"';
}

void append_number(std::string& out, double value) {
  if (!std::isfinite(value))
    out += "null";
  else
    fmt::format_to(std::back_inserter(out), "{:.7g}", value);
}

void append_exact_number(std::string& out, double value) {
  if (!std::isfinite(value))
    out += "null";
  else
    fmt::format_to(std::back_inserter(out), "{:.17g}", value);
}

size_t value_end(std::string_view text, size_t at) {
  if (at >= text.size()) return std::string_view::npos;
  if (text[at] == '"') return string_end(text, at);
  if (text[at] == '{' || text[at] == '[') {
    int depth = 0;
    for (size_t i = at; i < text.size();) {
      if (text[i] == '"') {
        i = string_end(text, i);
        if (i == std::string_view::npos) return i;
        continue;
      }
      if ((text[i] == '{' || text[i] == '[') && ++depth > kMaxDepth) return std::string_view::npos;
      if ((text[i] == '}' || text[i] == ']') && --depth == 0) return i + 1;
      ++i;
    }
    return std::string_view::npos;
  }
  size_t end = at;
  while (end < text.size() && text[end] != ',' && text[end] != '}' && text[end] != ']' && text[end] != ' ' &&
         text[end] != '\n' && text[end] != '\r' && text[end] != '\t')
    ++end;
  return end == at ? std::string_view::npos : end;
}

bool for_each_field(std::string_view object,
                    const std::function<void(std::string_view key, std::string_view value)>& f) {
  const size_t end = scan_object(object, skip_space(object, 0), f);
  return end != std::string_view::npos && skip_space(object, end) == object.size();
}

std::optional<double> parse_number(std::string_view value) {
  if (value == "true") return 1;
  if (value == "false") return 0;
  double number = 0;
  const auto [end, error] = std::from_chars(value.data(), value.data() + value.size(), number);
  if (error != std::errc() || end != value.data() + value.size() || !std::isfinite(number)) return std::nullopt;
  return number;
}

std::string parse_string(std::string_view value) {
  if (value.size() < 2 || value.front() != '"' || value.back() != '"') return std::string(value);
  value = value.substr(1, value.size() - 2);
  std::string out;
  for (size_t i = 0; i < value.size(); ++i) {
    if (value[i] != '\\' || i + 1 == value.size()) {
      out += value[i];
      continue;
    }
    const char c = value[++i];
    uint32_t code = 0;
    if (c == 'u' && i + 4 < value.size() &&
        std::from_chars(value.data() + i + 1, value.data() + i + 5, code, 16).ptr == value.data() + i + 5) {
      append_utf8(out, code);
      i += 4;
    } else {
      constexpr std::string_view kNames = "bfnrt", kMeant = "\b\f\n\r\t";
      const size_t at = kNames.find(c);
      out += at == std::string_view::npos ? c : kMeant[at];
    }
  }
  return out;
}

}  // namespace esp::dash
