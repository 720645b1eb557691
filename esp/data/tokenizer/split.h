// Pre-tokenization: splits text into pieces, and byte-level BPE merges only within a piece. Each pattern is the regular
// expression of a known model. The splitters are hand-written over character-class tables, without a regex engine, and
// tested against the original expressions.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <string_view>

namespace esp::data {

enum class SplitPattern : uint8_t { gpt2, cl100k, llama3, qwen2, o200k, none };

struct SplitPatternInfo {
  std::string_view name, help;
  SplitPattern pattern;
  std::string_view expression;  // spelling in tokenizer.json
};

std::span<const SplitPatternInfo> split_patterns();
// Throws a UsageError that lists the known names.
const SplitPatternInfo& find_split_pattern(std::string_view name);
const SplitPatternInfo& find_split_pattern(SplitPattern pattern);
// Finds the pattern for an expression of a tokenizer.json or of tiktoken's documentation; several spellings are known.
std::optional<SplitPattern> split_pattern_of(std::string_view expression);

inline constexpr size_t kSplitBatch = 64;
// Writes the end offsets of the next pieces from `at`, at most kSplitBatch. Returns their number, 0 at the end of the
// text.
size_t split_next(SplitPattern pattern, std::string_view text, size_t at, size_t* ends);

template <typename Visit>  // visit(std::string_view piece)
void for_each_piece(SplitPattern pattern, std::string_view text, Visit&& visit) {
  size_t ends[kSplitBatch];
  for (size_t at = 0; size_t count = split_next(pattern, text, at, ends);)
    for (size_t i = 0; i < count; ++i) {
      visit(text.substr(at, ends[i] - at));
      at = ends[i];
    }
}

}  // namespace esp::data
