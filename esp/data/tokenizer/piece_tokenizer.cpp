#include "esp/data/tokenizer/piece_tokenizer.h"

#include <algorithm>

#include <fmt/format.h>

#include "esp/base/error.h"
#include "esp/data/tokenizer/byte_bpe.h"
#include "esp/data/tokenizer/expansion_limit.h"
#include "esp/data/tokenizer/unicode.h"
#include "esp/obs/file.h"

namespace esp::data {
namespace {

constexpr std::string_view kSpaceMark = "\xE2\x96\x81";  // U+2581
constexpr size_t kLongText = size_t{1} << 16;
constexpr size_t kFreeNormalizedBytes = 1024;

bool crosses_space(std::string_view piece) {
  for (size_t at = piece.find(kSpaceMark, 1); at != piece.npos; at = piece.find(kSpaceMark, at + 1))
    if (at > 0 && !piece.substr(0, at).ends_with(kSpaceMark)) return true;
  return false;
}

// This function and the next ones return false if the text would exceed the limit. They then use no more memory.
bool replace_all(std::string& text, std::string_view from, std::string_view to, const ExpansionLimit& limit) {
  if (from.empty()) return true;
  std::string out;
  size_t at = 0;
  for (size_t hit; (hit = text.find(from, at)) != text.npos; at = hit + from.size()) {
    out.append(text, at, hit - at);
    if (!limit.allows(out.size() + to.size())) return false;
    out += to;
  }
  if (at == 0) return true;
  if (!limit.allows(out.size() + text.size() - at)) return false;
  out.append(text, at);
  text = std::move(out);
  return true;
}

void mark_spaces(std::string& text, std::string_view from, std::string_view to) {
  replace_all(text, from, to, ExpansionLimit(text.size(), 0));
}

bool squeeze_spaces(std::string& text, std::string_view to, const ExpansionLimit& limit) {
  std::string out;
  for (size_t at = 0; at < text.size();) {
    if (!limit.allows(out.size() + to.size())) return false;
    size_t end = std::min(text.find_first_not_of(' ', at), text.size());
    if (end - at >= 2)
      out += to;
    else
      out.append(text, at, std::max<size_t>(end - at, 1));
    at = std::max(end, at + 1);
  }
  text = std::move(out);
  return true;
}

bool is_white(std::string_view text, size_t at) {
  uint8_t c = point_cell(read_point(text.data() + at, text.size() - at).value) & kClassMask;
  return c == kSpace || c == kNewline;
}

size_t last_char(std::string_view text) {
  size_t at = text.size() - 1;
  while (at > 0 && (static_cast<uint8_t>(text[at]) & 0xC0) == 0x80) --at;
  return at;
}

// Applies the table to the start of the text. Without a match a character stays, and an invalid byte becomes U+FFFD.
std::pair<std::string_view, size_t> normalize_one(const Charsmap& charsmap, std::string_view text) {
  if (Charsmap::Replacement match = charsmap.match(text); match.bytes > 0) return {match.into, match.bytes};
  Point point = read_point(text.data(), text.size());
  if (point.value == kNoPoint) return {"\xEF\xBF\xBD", 1};
  return {text.substr(0, point.bytes), point.bytes};
}

bool apply_charsmap(const Charsmap& charsmap, std::string& text, const ExpansionLimit& limit) {
  std::string out;
  for (std::string_view left = text; !left.empty();) {
    auto [into, bytes] = normalize_one(charsmap, left);
    if (!limit.allows(out.size() + into.size())) return false;
    out += into;
    left.remove_prefix(bytes);
  }
  text = std::move(out);
  return true;
}

// The name of the step in tokenizer.json.
std::string name_of(const NormalizerStep& step) {
  switch (step.kind) {
    case NormalizerStep::Kind::charsmap:
      return "Precompiled";
    case NormalizerStep::Kind::prepend:
      return "Prepend";
    case NormalizerStep::Kind::replace:
      return fmt::format("Replace \"{}\"", step.from.substr(0, 40));
    case NormalizerStep::Kind::squeeze:
      return "Replace \" {2,}\"";
    case NormalizerStep::Kind::strip_left:
    case NormalizerStep::Kind::strip_right:
      return "Strip";
  }
  return "";
}

}  // namespace

PieceTokenizer::PieceTokenizer(PieceTokenizerParts parts) : parts_(std::move(parts)) {
  const std::vector<ScoredPiece>& pieces = parts_.model.pieces;
  for (size_t i = 0; i < pieces.size(); ++i) ids_.emplace(pieces[i].text, static_cast<int32_t>(i));
  if (parts_.unigram)
    model_ = make_unigram(parts_.model, parts_.sentencepiece);
  else if (parts_.sentencepiece)
    model_ = make_scored_bpe(parts_.model);
  else
    model_ = make_merged_bpe(parts_.model, parts_.merges, parts_.ignore_merges);
  for (AddedToken& token : parts_.added)
    if (token.normalized) token.content = normalize(token.content);
  added_ = AddedTokens(std::move(parts_.added));
  vocab_size_ = std::max(static_cast<int32_t>(pieces.size()), added_.size());
  // Unigram sums scores along the whole text, and rounding decides ties. Encoding word by word would round differently.
  words_independent_ = !parts_.unigram && std::none_of(pieces.begin(), pieces.end(), [](const ScoredPiece& piece) {
    return crosses_space(piece.text);
  });
  special_ = parts_.special;
  SpecialTokens guess = guess_special(*this);
  for (auto role : {&SpecialTokens::bos, &SpecialTokens::eos, &SpecialTokens::pad, &SpecialTokens::mask,
                    &SpecialTokens::cls, &SpecialTokens::sep, &SpecialTokens::unk})
    if (!(special_.*role) && !parts_.sentencepiece) special_.*role = guess.*role;
}

void PieceTokenizer::encode(std::string_view text, std::vector<int32_t>& out) const {
  bool first = true;
  auto emit = [&](const AddedToken& token) {
    out.push_back(token.id);
    first = false;
  };
  added_.walk(
      text, false,
      [&](std::string_view rest) {
        std::string normalized = normalize(rest);
        added_.walk(
            normalized, true,
            [&](std::string_view plain) {
              encode_normalized(plain, first, out);
              first = false;
            },
            emit);
      },
      emit);
}

void PieceTokenizer::encode_ordinary(std::string_view text, std::vector<int32_t>& out) const {
  encode_normalized(normalize(text), true, out);
}

std::string PieceTokenizer::normalize(std::string_view text) const {
  if (parts_.sentencepiece) return sentencepiece_normalize(text);
  std::string now(text);
  const ExpansionLimit limit(text.size(), kFreeNormalizedBytes);
  for (const NormalizerStep& step : parts_.steps) {
    bool fits = true;
    switch (step.kind) {
      case NormalizerStep::Kind::charsmap:
        fits = apply_charsmap(parts_.charsmap, now, limit);
        break;
      case NormalizerStep::Kind::prepend:
        fits = now.empty() || limit.allows(now.size() + step.to.size());
        if (fits && !now.empty()) now.insert(0, step.to);
        break;
      case NormalizerStep::Kind::replace:
        fits = replace_all(now, step.from, step.to, limit);
        break;
      case NormalizerStep::Kind::squeeze:
        fits = squeeze_spaces(now, step.to, limit);
        break;
      case NormalizerStep::Kind::strip_left: {
        size_t at = 0;
        while (at < now.size() && is_white(now, at)) at += char_bytes(now, at);
        now.erase(0, at);
        break;
      }
      case NormalizerStep::Kind::strip_right:
        while (!now.empty() && is_white(now, last_char(now))) now.erase(last_char(now));
        break;
    }
    if (!fits)
      limit.fail(fmt::format("{}: normalizer: step {} of {} ({})", parts_.model.what, &step - parts_.steps.data() + 1,
                             parts_.steps.size(), name_of(step)));
  }
  return now;
}

std::string PieceTokenizer::sentencepiece_normalize(std::string_view text) const {
  const Charsmap& map = parts_.charsmap;
  if (parts_.remove_extra_spaces)
    while (!text.empty()) {
      auto [into, bytes] = normalize_one(map, text);
      if (into != " ") break;
      text.remove_prefix(bytes);
    }
  if (text.empty()) return {};
  std::string_view space = parts_.escape_spaces ? kSpaceMark : std::string_view(" ");
  const ExpansionLimit limit(text.size(), kFreeNormalizedBytes);
  std::string out;
  out.reserve(text.size() + text.size() / 4 + 4);
  if (parts_.add_prefix) out += space;
  bool after_space = parts_.remove_extra_spaces;
  while (!text.empty()) {
    auto [into, bytes] = normalize_one(map, text);
    if (!limit.allows(out.size() + space.size() * into.size()))
      limit.fail(fmt::format("{}: normalizer", parts_.model.what));
    while (after_space && into.starts_with(' ')) into.remove_prefix(1);
    for (char letter : into) {
      if (letter == ' ')
        out += space;
      else
        out += letter;
    }
    if (!into.empty()) after_space = parts_.remove_extra_spaces && into.ends_with(' ');
    text.remove_prefix(bytes);
  }
  if (parts_.remove_extra_spaces)
    while (out.ends_with(space)) out.erase(out.size() - space.size());
  return out;
}

void PieceTokenizer::encode_normalized(std::string_view text, bool is_first, std::vector<int32_t>& out) const {
  if (!parts_.metaspace) return encode_words(text, out);
  auto one = [&](std::string_view part, bool prefix) {
    std::string marked(part);
    mark_spaces(marked, " ", kSpaceMark);
    if (prefix && !marked.starts_with(kSpaceMark)) marked.insert(0, kSpaceMark);
    encode_words(marked, out);
  };
  bool prefix = parts_.prefix == PieceTokenizerParts::Prefix::always ||
                (parts_.prefix == PieceTokenizerParts::Prefix::first && is_first);
  if (!parts_.drop_white) return one(text, prefix);
  for (size_t at = 0; at < text.size();) {
    if (is_white(text, at)) {
      at += char_bytes(text, at);
      continue;
    }
    size_t begin = at;
    while (at < text.size() && !is_white(text, at)) at += char_bytes(text, at);
    one(text.substr(begin, at - begin), parts_.prefix == PieceTokenizerParts::Prefix::always || (prefix && begin == 0));
  }
}

void PieceTokenizer::encode_words(std::string_view text, std::vector<int32_t>& out) const {
  std::vector<int32_t> ids;  // separate from `out`, so that unknown ids fuse only within this text
  ids.reserve(text.size() / 3 + 8);
  auto word_end = [&](size_t at) {
    if (!parts_.split_at_spaces && !words_independent_) return text.size();
    size_t next = at;
    if (parts_.split_at_spaces) {
      if (text.substr(next).starts_with(kSpaceMark)) next += kSpaceMark.size();
      return std::min(text.find(kSpaceMark, next), text.size());
    }
    // Unigram sums scores along the text, and rounding decides ties. Only very long text is therefore cut.
    if (parts_.unigram) next = std::min(at + kLongText, text.size());
    for (;;) {  // several adjacent spaces may be one piece, so only the first of them begins a word
      while (text.substr(next).starts_with(kSpaceMark)) next += kSpaceMark.size();
      next = std::min(text.find(kSpaceMark, next), text.size());
      if (next == text.size() || !text.substr(0, next).ends_with(kSpaceMark)) return next;
    }
  };
  for (size_t at = 0; at < text.size();) {
    size_t end = word_end(at);
    encode_word(text.substr(at, end - at), text.size() - at, ids);
    at = end;
  }
  out.insert(out.end(), ids.begin(), ids.end());
}

void PieceTokenizer::encode_word(std::string_view word, size_t readable, std::vector<int32_t>& ids) const {
  // encode() itself fuses unknown ids with those at the end of `ids`
  if (word.size() > WordCache::kMaxBytes) return model_->encode(word, ids);
  WordCache::WordKey key = WordCache::key_of(word, readable);
  int32_t known[WordCache::kMaxIds];
  int count = cache_.find(key, word.size(), known);
  const UnknownRule& unknown = parts_.model.unknown;
  auto append = [&](std::span<const int32_t> found) {
    // An unknown id at the start of this word fuses with an unknown id at the end of the previous word.
    bool again = unknown.fuse && !unknown.as_bytes && !ids.empty() && !found.empty() && found[0] == unknown.id &&
                 ids.back() == unknown.id;
    ids.insert(ids.end(), found.begin() + again, found.end());
  };
  if (count >= 0) return append({known, static_cast<size_t>(count)});
  std::vector<int32_t> fresh;
  model_->encode(word, fresh);
  cache_.insert(key, word.size(), fresh);
  append(fresh);
}

std::string PieceTokenizer::decode(std::span<const int32_t> ids) const {
  const std::vector<ScoredPiece>& pieces = parts_.model.pieces;
  std::string text;
  const ExpansionLimit limit = ExpansionLimit::for_ids(ids);
  for (int32_t id : ids) {
    if (!limit.allows(text.size())) limit.fail(fmt::format("{}: decoder", parts_.model.what));
    if (const AddedToken* added = added_.by_id(id)) {
      text += added->content;
      continue;
    }
    if (id < 0 || static_cast<size_t>(id) >= pieces.size())
      throw UsageError(fmt::format("id {} is not in the vocabulary of {} ids", id, vocab_size_));
    const ScoredPiece& piece = pieces[static_cast<size_t>(id)];
    if (piece.type == PieceType::byte) {
      const auto& bytes = parts_.model.unknown.byte_ids;
      text += static_cast<char>(std::find(bytes.begin(), bytes.end(), id) - bytes.begin());
    } else {
      std::string part = piece.text;
      mark_spaces(part, kSpaceMark, " ");
      text += part;
    }
  }
  if (parts_.decode_drops_space && text.starts_with(' ')) text.erase(0, 1);
  return text;
}

std::optional<int32_t> PieceTokenizer::id_of(std::string_view token) const {
  if (const AddedToken* added = added_.by_content(token)) return added->id;
  auto row = ids_.find(token);
  if (row == ids_.end()) return std::nullopt;
  return row->second;
}

void PieceTokenizer::save(const std::string& folder) const {
  obs::write_whole_file(folder + "/" + parts_.file_name, parts_.source);
}

}  // namespace esp::data
