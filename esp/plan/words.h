// Words as people write them in tables and on command lines, made comparable.
#pragma once

#include <string>
#include <string_view>

namespace esp::plan {

std::string lower_case(std::string_view text);
// Letters and digits in lower case: "NVIDIA A100-SXM4-80GB" → "nvidiaa100sxm480gb"; "ZB-V", "zb_v" and "zbv" are one.
std::string bare_word(std::string_view text);
inline bool has(std::string_view text, std::string_view part) {
  return text.find(part) != std::string_view::npos;
}

}  // namespace esp::plan
