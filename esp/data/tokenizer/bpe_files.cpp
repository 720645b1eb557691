#include "esp/data/tokenizer/bpe_files.h"

#include <algorithm>
#include <charconv>

#include <fmt/format.h>

#include "esp/base/error.h"
#include "esp/data/tokenizer/base64.h"
#include "esp/data/tokenizer/byte_bpe.h"
#include "esp/data/tokenizer/tokenizer_json.h"

namespace esp::data {
namespace {

constexpr size_t kMaxTokenBytes = 1024;  // limit in rank files, because every split of a token is looked up

// Returns the next line without its line end and moves `at` past it.
std::string_view next_line(std::string_view text, size_t& at) {
  size_t end = std::min(text.find('\n', at), text.size());
  std::string_view line = text.substr(at, end - at);
  at = end + 1;
  if (line.ends_with('\r')) line.remove_suffix(1);
  return line;
}

struct NamedId {
  std::string_view name;
  int32_t id;
};
struct KnownEncoding {
  std::string_view stem;
  SplitPattern pattern;
  std::vector<NamedId> special;
};

// tiktoken's public encodings, and llama3 (LLaMA 3's tokenizer.model).
const std::vector<KnownEncoding>& known_encodings() {
  static const std::vector<KnownEncoding> known = {
      {"r50k_base", SplitPattern::gpt2, {{"<|endoftext|>", 50256}}},
      {"p50k_base", SplitPattern::gpt2, {{"<|endoftext|>", 50256}}},
      {"cl100k_base",
       SplitPattern::cl100k,
       {{"<|endoftext|>", 100257},
        {"<|fim_prefix|>", 100258},
        {"<|fim_middle|>", 100259},
        {"<|fim_suffix|>", 100260},
        {"<|endofprompt|>", 100276}}},
      {"o200k_base", SplitPattern::o200k, {{"<|endoftext|>", 199999}, {"<|endofprompt|>", 200018}}},
      {"llama3",
       SplitPattern::llama3,
       {{"<|begin_of_text|>", 128000},
        {"<|end_of_text|>", 128001},
        {"<|finetune_right_pad_id|>", 128004},
        {"<|start_header_id|>", 128006},
        {"<|end_header_id|>", 128007},
        {"<|eom_id|>", 128008},
        {"<|eot_id|>", 128009},
        {"<|python_tag|>", 128010}}},
  };
  return known;
}

std::pair<std::string, int32_t> rank_line(std::string_view line, std::string_view what, size_t number) {
  size_t space = line.find(' ');
  int32_t rank = -1;
  std::optional<std::string> token;
  if (space != line.npos) {
    token = from_base64(line.substr(0, space));
    const char* end = line.data() + line.size();
    auto parsed = std::from_chars(line.data() + space + 1, end, rank);
    if (parsed.ec != std::errc() || parsed.ptr != end) rank = -1;
  }
  if (!token || token->empty() || token->size() > kMaxTokenBytes || rank < 0)
    throw IoError(fmt::format("{} line {}: got \"{}\"; expected a token in base64 (1 to {} bytes), a space, its rank",
                              what, number, line.substr(0, 80), kMaxTokenBytes));
  return {std::move(*token), rank};
}

// tiktoken merges two neighbours if their concatenated bytes are a token. Lower ranks of that token merge first.
std::vector<Merge> all_splits(const TokenTable& tokens) {
  std::vector<Merge> merges;
  for (int32_t id = 0; id < tokens.size(); ++id) {
    std::string_view whole = tokens.bytes(id);
    for (size_t cut = 1; cut < whole.size(); ++cut)
      if (auto right = tokens.find(whole.substr(cut)))
        if (auto left = tokens.find(whole.substr(0, cut)))
          merges.push_back({*left, *right, id, static_cast<uint32_t>(id)});
  }
  return merges;
}

}  // namespace

std::unique_ptr<Tokenizer> read_gpt2_files(std::string_view vocab_json, std::string_view merges_txt,
                                           std::string_view what) {
  std::vector<std::pair<std::string, std::string>> merges;
  size_t number = 0;
  for (size_t at = 0; at < merges_txt.size();) {
    std::string_view line = next_line(merges_txt, at);
    ++number;
    if (line.empty() || (number == 1 && line.starts_with("#version"))) continue;
    size_t space = line.find(' ');
    if (space == line.npos || space == 0 || space + 1 == line.size() || line.find(' ', space + 1) != line.npos)
      throw IoError(fmt::format("{} merges.txt line {}: got \"{}\"; expected two parts with one space between", what,
                                number, line.substr(0, 80)));
    merges.emplace_back(line.substr(0, space), line.substr(space + 1));
  }
  BpeParts parts;
  set_byte_level_vocab(parts, parse_vocab_json(vocab_json, fmt::format("{} vocab.json", what)), merges, what);
  for (std::string_view name : {"<|endoftext|>", "<s>", "</s>", "<pad>", "<unk>", "<mask>"})
    if (auto id = parts.tokens.find(name)) parts.added.push_back({std::string(name), *id});
  return std::make_unique<ByteBpe>(std::move(parts));
}

bool looks_like_tiktoken(std::string_view text) {
  size_t at = 0;
  std::string_view line = next_line(text, at);
  size_t space = line.find(' ');
  return space != line.npos && space > 0 && from_base64(line.substr(0, space)).has_value();
}

std::unique_ptr<Tokenizer> read_tiktoken(std::string_view text, std::string_view stem, std::string_view pattern,
                                         std::string_view what) {
  std::vector<std::pair<std::string, int32_t>> tokens;
  size_t number = 0;
  for (size_t at = 0; at < text.size();) {
    std::string_view line = next_line(text, at);
    ++number;
    if (!line.empty()) tokens.push_back(rank_line(line, what, number));
  }
  BpeParts parts;
  parts.tokens = TokenTable(std::move(tokens), what);
  for (int byte = 0; byte < 256; ++byte) {
    char letter = static_cast<char>(byte);
    if (!parts.tokens.find({&letter, 1}))
      throw IoError(fmt::format("{}: the byte 0x{:02x} has no token; expected one for each byte", what, byte));
  }
  parts.merges = all_splits(parts.tokens);
  parts.ignore_merges = true;
  for (const KnownEncoding& known : known_encodings()) {
    if (known.stem != stem) continue;
    parts.pattern = known.pattern;
    for (const NamedId& token : known.special)
      if (!parts.tokens.has(token.id)) parts.added.push_back({std::string(token.name), token.id});
  }
  if (!pattern.empty()) parts.pattern = find_split_pattern(pattern).pattern;
  return std::make_unique<ByteBpe>(std::move(parts));
}

}  // namespace esp::data
