// Each splitter tries the alternatives of its expression in order and takes the first match, like a backtracking
// engine. Character classes: U is [\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}], W is [\p{Ll}\p{Lm}\p{Lo}\p{M}], white is \s.
#include "esp/data/tokenizer/split.h"

#include "esp/base/table.h"
#include "esp/data/tokenizer/unicode.h"

namespace esp::data {
namespace {

#define ESP_SUFFIXES "'s|'t|'re|'ve|'m|'ll|'d"
constexpr SplitPatternInfo kRows[] = {
    {"gpt2", "GPT-2: words and numbers with the space before them", SplitPattern::gpt2,
     ESP_SUFFIXES R"(| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+)"},
    {"cl100k", "GPT-4, as in tiktoken: numbers in groups of three digits, trailing white space as one piece",
     SplitPattern::cl100k,
     "(?i:" ESP_SUFFIXES
     R"()|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s+\z|\s*[\r\n]+|\s+(?!\S)|\s+)"},
    {"llama3", "LLaMA 3: three digits at a time", SplitPattern::llama3,
     "(?i:" ESP_SUFFIXES R"()|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+)"},
    {"qwen2", "Qwen 2: digits one by one", SplitPattern::qwen2,
     "(?i:" ESP_SUFFIXES R"()|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+)"},
    {"o200k", "GPT-4o: capitals begin a word", SplitPattern::o200k,
     R"([^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]*[\p{Ll}\p{Lm}\p{Lo}\p{M}]+(?i:)" ESP_SUFFIXES
     R"()?|[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]+[\p{Ll}\p{Lm}\p{Lo}\p{M}]*(?i:)" ESP_SUFFIXES
     R"()?|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n/]*|\s*[\r\n]+|\s+(?!\S)|\s+)"},
    {"none", "no split: the complete text is one piece", SplitPattern::none, ""},
};
#undef ESP_SUFFIXES

constexpr uint32_t bit(PointClass c) {
  return 1u << c;
}
constexpr uint32_t kLetters = bit(kLower) | bit(kUpper) | bit(kOtherLetter), kWhite = bit(kSpace) | bit(kNewline),
                   kNumbers = bit(kNumber), kSymbols = bit(kOther) | bit(kMark), kNewlines = bit(kNewline),
                   kU = bit(kUpper) | bit(kOtherLetter) | bit(kMark), kW = bit(kLower) | bit(kOtherLetter) | bit(kMark),
                   kBoth = kU & kW, kPrefix = bit(kOther) | bit(kSpace) | bit(kMark);

class Cursor {
 public:
  explicit Cursor(std::string_view text) : text_(text.data()), size_(text.size()) {}
  size_t size() const { return size_; }
  char byte(size_t at) const { return text_[at]; }

  // Returns the class of the character at `at` as one bit (0 at the end) and sets `next` to the next character.
  uint32_t class_at(size_t at, size_t& next) const {
    if (at >= size_) return 0;
    uint8_t first = static_cast<uint8_t>(text_[at]);
    if (first < 0x80) [[likely]] {
      next = at + 1;
      return 1u << (kAsciiCells[first] & kClassMask);
    }
    Point point = read_point(text_ + at, size_ - at);
    next = at + point.bytes;
    return 1u << (point_cell(point.value) & kClassMask);
  }
  uint32_t class_at(size_t at) const {
    size_t ignored;
    return class_at(at, ignored);
  }

  size_t skip(size_t at, uint32_t classes) const {
    size_t next = at;
    while (class_at(at, next) & classes) at = next;
    return at;
  }
  size_t skip_at_most(size_t at, uint32_t classes, int count) const {
    size_t next = at;
    while (count-- > 0 && (class_at(at, next) & classes)) at = next;
    return at;
  }

  // Skips a suffix 's 't 're 've 'm 'll 'd, if there is one at `at`. If `any_case`, U+017F (long s) also matches s.
  size_t skip_suffix(size_t at, bool any_case) const {
    if (at + 1 >= size_ || text_[at] != '\'') return at;
    auto lower = [&](size_t i) { return any_case ? static_cast<char>(text_[i] | 0x20) : text_[i]; };
    char first = lower(at + 1);
    if (first == 's' || first == 't' || first == 'm' || first == 'd') return at + 2;
    if (at + 2 >= size_) return at;
    char second = lower(at + 2);
    if ((first == 'r' && second == 'e') || (first == 'v' && second == 'e') || (first == 'l' && second == 'l'))
      return at + 3;
    if (any_case && text_[at + 1] == '\xC5' && text_[at + 2] == '\xBF') return at + 3;
    return at;
  }

 private:
  const char* text_;
  size_t size_;
};

struct WhiteRun {
  size_t end, last_begin, after_newline;  // after_newline: end of the last line end; 0 if there is none
};

WhiteRun white_run(const Cursor& text, size_t at) {
  WhiteRun run{at, at, 0};
  size_t next = at;
  while (uint32_t c = text.class_at(run.end, next) & kWhite) {
    run.last_begin = run.end;
    run.end = next;
    if (c == kNewlines) run.after_newline = next;
  }
  return run;
}

// \s+(?!\S)|\s+ : all white space at the end of the text, otherwise all but the last character, which the next piece
// may take.
size_t white_end(const Cursor& text, const WhiteRun& run, size_t at) {
  return run.end == text.size() || run.last_begin == at ? run.end : run.last_begin;
}

struct Gpt2 {
  static size_t end(const Cursor& text, size_t at) {
    if (text.byte(at) == '\'')
      if (size_t end = text.skip_suffix(at, false); end != at) return end;
    size_t from = at + (text.byte(at) == ' ');
    size_t next = from;
    uint32_t c = text.class_at(from, next);
    for (uint32_t classes : {kLetters, kSymbols, kNumbers})
      if (c & classes) return text.skip(next, classes);
    return white_end(text, white_run(text, at), at);
  }
};

// The splitter of cl100k, llama3 and qwen2.
template <int max_digits, bool white_to_the_end_first>
struct Gpt4 {
  static size_t end(const Cursor& text, size_t at) {
    if (text.byte(at) == '\'')
      if (size_t end = text.skip_suffix(at, true); end != at) return end;
    size_t next = at;
    uint32_t c = text.class_at(at, next);
    if (c & kLetters) return text.skip(next, kLetters);
    if (c & kPrefix)
      if (size_t end = text.skip(next, kLetters); end != next) return end;
    if (c & kNumbers) return text.skip_at_most(next, kNumbers, max_digits - 1);
    size_t from = at + (text.byte(at) == ' ');
    if (size_t end = text.skip(from, kSymbols); end != from) return text.skip(end, kNewlines);
    WhiteRun run = white_run(text, at);
    if (white_to_the_end_first && run.end == text.size()) return run.end;
    if (run.after_newline) return run.after_newline;
    return white_end(text, run, at);
  }
};

struct O200k {
  // Matches U*W+ from `at`; returns `at` without a match. U* is greedy and gives back only what W+ needs.
  static size_t lower_word(const Cursor& text, size_t at) {
    size_t end = at, next = at, after_both = at;
    while (uint32_t c = text.class_at(end, next) & kU) {
      end = next;
      if (c & kBoth) after_both = next;
    }
    size_t lower = text.skip(end, kW);
    return lower != end ? lower : after_both;
  }
  // Matches U+W*.
  static size_t upper_word(const Cursor& text, size_t at) {
    size_t end = text.skip(at, kU);
    return end != at ? text.skip(end, kW) : at;
  }

  static size_t end(const Cursor& text, size_t at) {
    size_t next = at;
    uint32_t c = text.class_at(at, next);
    for (auto word : {lower_word, upper_word}) {
      if (c & kPrefix)
        if (size_t end = word(text, next); end != next) return text.skip_suffix(end, true);
      if (c & (kU | kW))
        if (size_t end = word(text, at); end != at) return text.skip_suffix(end, true);
    }
    if (c & kNumbers) return text.skip_at_most(next, kNumbers, 2);
    size_t from = at + (text.byte(at) == ' ');
    if (size_t end = text.skip(from, kSymbols); end != from) {
      while (end < text.size() && (text.byte(end) == '\r' || text.byte(end) == '\n' || text.byte(end) == '/')) ++end;
      return end;
    }
    WhiteRun run = white_run(text, at);
    return run.after_newline ? run.after_newline : white_end(text, run, at);
  }
};

template <typename Splitter>
size_t run_splitter(std::string_view text, size_t at, size_t* ends) {
  Cursor cursor(text);
  size_t count = 0;
  while (count < kSplitBatch && at < text.size()) ends[count++] = at = Splitter::end(cursor, at);
  return count;
}

}  // namespace

std::span<const SplitPatternInfo> split_patterns() {
  return kRows;
}

const SplitPatternInfo& find_split_pattern(std::string_view name) {
  return find_row("split pattern", kRows, name);
}

const SplitPatternInfo& find_split_pattern(SplitPattern pattern) {
  return kRows[static_cast<size_t>(pattern)];
}

std::optional<SplitPattern> split_pattern_of(std::string_view expression) {
  for (const SplitPatternInfo& row : kRows)
    if (!row.expression.empty() && row.expression == expression) return row.pattern;
  // tiktoken's spellings, which differ only in possessive repeats.
  if (expression == R"('(?:[sdmt]|ll|ve|re)| ?\p{L}++| ?\p{N}++| ?[^\s\p{L}\p{N}]++|\s++$|\s+(?!\S)|\s)" ||
      expression == R"('(?:[sdmt]|ll|ve|re)| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+)")
    return SplitPattern::gpt2;
  if (expression ==
      R"('(?i:[sdmt]|ll|ve|re)|[^\r\n\p{L}\p{N}]?+\p{L}++|\p{N}{1,3}+| ?[^\s\p{L}\p{N}]++[\r\n]*+|\s++$|\s*[\r\n]|\s+(?!\S)|\s)")
    return SplitPattern::cl100k;
  if (expression ==
      R"('(?i:[sdmt]|ll|ve|re)|[^\r\n\p{L}\p{N}]?+\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]++[\r\n]*|\s*[\r\n]|\s+(?!\S)|\s+)")
    return SplitPattern::llama3;
  return std::nullopt;
}

size_t split_next(SplitPattern pattern, std::string_view text, size_t at, size_t* ends) {
  switch (pattern) {
    case SplitPattern::gpt2:
      return run_splitter<Gpt2>(text, at, ends);
    case SplitPattern::cl100k:
      return run_splitter<Gpt4<3, true>>(text, at, ends);
    case SplitPattern::llama3:
      return run_splitter<Gpt4<3, false>>(text, at, ends);
    case SplitPattern::qwen2:
      return run_splitter<Gpt4<1, false>>(text, at, ends);
    case SplitPattern::o200k:
      return run_splitter<O200k>(text, at, ends);
    case SplitPattern::none:
      break;
  }
  if (at >= text.size()) return 0;
  ends[0] = text.size();
  return 1;
}

}  // namespace esp::data
