// Normalises words of tables and of the command line, so that spellings can be compared.
#pragma once

#include <string>
#include <string_view>

namespace esp::plan {

std::string lower_case(std::string_view text);
// The lower-case letters and the digits of a text: "NVIDIA A100-SXM4-80GB" → "nvidiaa100sxm480gb". "ZB-V", "zb_v" and
// "zbv" give the same word.
std::string bare_word(std::string_view text);
inline bool has(std::string_view text, std::string_view part) {
  return text.find(part) != std::string_view::npos;
}

}  // namespace esp::plan
