#include "esp/plan/normalise.h"

#include <cctype>

namespace esp::plan {

std::string lower_case(std::string_view text) {
  std::string out(text);
  for (char& c : out) c = static_cast<char>(std::tolower(static_cast<unsigned char>(c)));
  return out;
}

std::string bare_word(std::string_view text) {
  std::string out;
  for (const char c : lower_case(text))
    if (std::isalnum(static_cast<unsigned char>(c))) out += c;
  return out;
}

}  // namespace esp::plan
