// Every parser of the product in one table, named by its fuzz target. A new parser is one row here and one *_fuzz.cpp.
#pragma once

#include <cstddef>
#include <ostream>
#include <span>
#include <string>
#include <string_view>
#include <vector>

namespace esp {

struct Parser {
  std::string_view target;  // the name of X_fuzz.cpp is X
  void (*parse)(std::string_view input);
  // Inputs of `items` items that are accepted, or refused only because of a limit that the message names.
  struct Large {
    std::string_view what;
    std::string (*make)(size_t items);
    std::string_view limit = {};
  };
  std::vector<Large> large;
  // What stands before the nested part of an input, where the parser looks at it there only.
  std::vector<std::string_view> prefixes;
};

const std::vector<Parser>& parsers();

// GoogleTest names the parameter of a failed test with it.
inline void PrintTo(const Parser& parser, std::ostream* out) {
  *out << parser.target;
}

}  // namespace esp
