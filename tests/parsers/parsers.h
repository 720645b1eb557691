// Table of all parsers; each is named by its fuzz target. A new parser needs one row here and one *_fuzz.cpp.
#pragma once

#include <cstddef>
#include <ostream>
#include <span>
#include <string>
#include <string_view>
#include <vector>

namespace esp {

struct Parser {
  std::string_view target;  // name X of the fuzz target X_fuzz.cpp
  void (*parse)(std::string_view input);
  // Inputs with `items` items. The parser must accept them, or reject them only because of a limit that the message
  // names.
  struct Large {
    std::string_view what;
    std::string (*make)(size_t items);
    std::string_view limit = {};
  };
  std::vector<Large> large;
  // Texts put before the nested part; needed by parsers that accept nesting only at some positions.
  std::vector<std::string_view> prefixes;
};

const std::vector<Parser>& parsers();

// GoogleTest prints a failed test's parameter with this function.
inline void PrintTo(const Parser& parser, std::ostream* out) {
  *out << parser.target;
}

}  // namespace esp
