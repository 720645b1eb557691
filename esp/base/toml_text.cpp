#include "esp/base/toml_text.h"

#include <algorithm>

#include <fmt/format.h>

#include "esp/base/error.h"

namespace esp {
namespace {

// Position after the closing quotes of the string that begins at `at`; the end of the text if it has none.
size_t end_of_string(std::string_view text, size_t at) {
  const char quote = text[at];
  const bool long_form = text.substr(at, 3) == std::string(3, quote);
  const std::string closing(long_form ? 3 : 1, quote);
  for (at += closing.size(); at < text.size(); ++at) {
    if (!long_form && text[at] == '\n') return at;  // a string without closing quote: toml++ reports the error
    if (quote == '"' && text[at] == '\\') {
      ++at;
    } else if (text.substr(at, closing.size()) == closing) {
      return at + closing.size();
    }
  }
  return text.size();
}

}  // namespace

void check_toml_text(std::string_view text, std::string_view name) {
  size_t depth = 0;  // number of open brackets and braces
  size_t parts = 1;  // parts of the current dotted key
  const auto refuse = [&](size_t at, const std::string& problem) {
    const auto line = std::count(text.begin(), text.begin() + static_cast<long>(at), '\n') + 1;
    const size_t before = at == 0 ? std::string_view::npos : text.rfind('\n', at - 1);
    const size_t column = at - (before == std::string_view::npos ? 0 : before + 1) + 1;
    throw UsageError(fmt::format("{}:{}:{}: {}", name, line, column, problem));
  };
  for (size_t at = 0; at < text.size();) {
    const auto letter = static_cast<unsigned char>(text[at]);
    if (letter == '"' || letter == '\'') {
      at = end_of_string(text, at);
      continue;
    }
    if (letter == '#') {
      at = std::min(text.find('\n', at), text.size());
      continue;
    }
    if (letter >= 0x80 && !(at == 0 && text.starts_with("\xEF\xBB\xBF")))
      refuse(at, "got a non-ASCII letter outside a string or comment; expected ASCII. Put it in quotes");
    if (letter == '[' || letter == '{') {
      if (++depth > kMaxTomlDepth)
        refuse(at,
               fmt::format("brackets are nested deeper than {} levels; use tables such as [section]", kMaxTomlDepth));
    } else if ((letter == ']' || letter == '}') && depth > 0) {
      --depth;
    }
    if (letter == '.') {
      if (++parts > kMaxTomlDepth) refuse(at, fmt::format("a key has more than {} parts", kMaxTomlDepth));
    } else if (std::string_view("=,[]{}\n").find(text[at]) != std::string_view::npos) {
      parts = 1;
    }
    at += letter >= 0x80 ? 3 : 1;
  }
}

}  // namespace esp
