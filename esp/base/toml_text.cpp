#include "esp/base/toml_text.h"

#include <algorithm>

#include <fmt/format.h>

#include "esp/base/error.h"

namespace esp {
namespace {

// Where the string that begins at `at` ends: behind its closing quotes, or at the end of the text.
size_t end_of_string(std::string_view text, size_t at) {
  const char quote = text[at];
  const bool long_form = text.substr(at, 3) == std::string(3, quote);
  const std::string closing(long_form ? 3 : 1, quote);
  for (at += closing.size(); at < text.size(); ++at) {
    if (!long_form && text[at] == '\n') return at;  // unclosed: the parser says so
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
  for (size_t at = 0; at < text.size();) {
    const auto letter = static_cast<unsigned char>(text[at]);
    if (letter == '"' || letter == '\'') {
      at = end_of_string(text, at);
    } else if (letter == '#') {
      at = std::min(text.find('\n', at), text.size());
    } else if (letter >= 0x80 && !(at == 0 && text.starts_with("\xEF\xBB\xBF"))) {
      const auto line = std::count(text.begin(), text.begin() + static_cast<long>(at), '\n') + 1;
      const size_t before = text.rfind('\n', at);
      throw UsageError(fmt::format("{}:{}:{}: a letter beyond ASCII outside a string or comment; put it in quotes",
                                   name, line, at - (before == std::string_view::npos ? 0 : before + 1) + 1));
    } else {
      at += letter >= 0x80 ? 3 : 1;
    }
  }
}

}  // namespace esp
