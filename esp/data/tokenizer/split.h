// Cuts text into the pieces that byte-level BPE merges within. Each pattern is a regular expression of a known model;
// none is run as one: the splitters are written by hand over class tables and tested against the real expressions.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <string_view>

namespace esp::data {

enum class SplitPattern : uint8_t { gpt2, cl100k, llama3, qwen2, o200k, none };

struct SplitRow {
  std::string_view name, help;
  SplitPattern pattern;
  std::string_view expression;  // as tokenizer.json spells it
};

std::span<const SplitRow> split_patterns();
// Throws UsageError naming the known ones.
const SplitRow& find_split(std::string_view name);
const SplitRow& find_split(SplitPattern pattern);
// The pattern that a tokenizer.json or a rank file's documentation spells so; several spellings are known.
std::optional<SplitPattern> split_of_expression(std::string_view expression);

inline constexpr size_t kPiecesAtOnce = 64;
// Writes the ends of the next pieces from `at`, at most kPiecesAtOnce; returns how many, 0 at the end of the text.
size_t split_some(SplitPattern pattern, std::string_view text, size_t at, size_t* ends);

template <typename Visit>  // visit(std::string_view piece)
void for_each_piece(SplitPattern pattern, std::string_view text, Visit&& visit) {
  size_t ends[kPiecesAtOnce];
  for (size_t at = 0; size_t count = split_some(pattern, text, at, ends);)
    for (size_t i = 0; i < count; ++i) {
      visit(text.substr(at, ends[i] - at));
      at = ends[i];
    }
}

}  // namespace esp::data
