#include "esp/data/tokenizer/byte_bpe.h"

#include <algorithm>

#include <fmt/format.h>

#include "esp/base/error.h"
#include "esp/data/tokenizer/expansion_limit.h"
#include "esp/data/tokenizer/post_processor.h"
#include "esp/data/tokenizer/tokenizer_json.h"
#include "esp/obs/file.h"

namespace esp::data {

ByteBpe::ByteBpe(BpeParts parts) : parts_(std::move(parts)), added_(std::move(parts_.added)), merges_(parts_.merges) {
  for (size_t byte = 0; byte < 256; ++byte) {
    char letter = static_cast<char>(byte);
    byte_ids_[byte] = parts_.tokens.find({&letter, 1}).value_or(-1);
  }
  vocab_size_ = std::max(parts_.tokens.size(), added_.size());
  special_ = guess_special(*this);
}

void ByteBpe::encode(std::string_view text, std::vector<int32_t>& out) const {
  auto emit = [&](const AddedToken& token) { out.push_back(token.id); };
  added_.walk(
      text, false,
      [&](std::string_view rest) {
        added_.walk(
            rest, true, [&](std::string_view plain) { encode_ordinary(plain, out); }, emit);
      },
      emit);
}

void ByteBpe::encode_ordinary(std::string_view text, std::vector<int32_t>& out) const {
  if (text.empty()) return;
  std::string prefixed;
  if (parts_.add_prefix_space && text[0] != ' ') {
    prefixed.reserve(text.size() + 1);
    prefixed = ' ';
    prefixed += text;
    text = prefixed;
  }
  constexpr size_t kBuffer = 512;
  int32_t buffer[kBuffer];
  size_t used = 0;
  auto flush = [&] {
    out.insert(out.end(), buffer, buffer + used);
    used = 0;
  };
  size_t ends[kSplitBatch];
  for (size_t at = 0; size_t count = split_next(parts_.pattern, text, at, ends);)
    for (size_t i = 0; i < count; ++i) {
      std::string_view piece(text.data() + at, ends[i] - at);
      if (piece.size() > WordCache::kMaxBytes) [[unlikely]] {
        flush();
        encode_piece(piece, out);
      } else {
        if (used + WordCache::kMaxBytes > kBuffer) flush();
        WordCache::WordKey key = WordCache::key_of(piece, text.size() - at);
        int known = cache_.find(key, piece.size(), buffer + used);
        if (known >= 0) [[likely]] {
          used += static_cast<size_t>(known);
        } else {
          size_t ids = encode_short(piece, buffer + used);
          cache_.insert(key, piece.size(), {buffer + used, ids});
          used += ids;
        }
      }
      at = ends[i];
    }
  flush();
}

// `ids` must have room for one id per byte.
size_t ByteBpe::encode_short(std::string_view piece, int32_t* ids) const {
  if (parts_.ignore_merges)
    if (std::optional<int32_t> id = parts_.tokens.find(piece)) {
      ids[0] = *id;
      return 1;
    }
  size_t count = 0;
  for (char letter : piece) {
    int32_t id = byte_ids_[static_cast<uint8_t>(letter)];
    if (id < 0) {
      if (!parts_.unknown || (parts_.fuse_unknown && count > 0 && ids[count - 1] == *parts_.unknown)) continue;
      id = *parts_.unknown;
    }
    ids[count++] = id;
  }
  return merges_.apply(ids, count);
}

void ByteBpe::encode_piece(std::string_view piece, std::vector<int32_t>& out) const {
  size_t before = out.size();
  out.resize(before + piece.size());
  out.resize(before + encode_short(piece, out.data() + before));
}

std::string ByteBpe::decode(std::span<const int32_t> ids) const {
  std::string text;
  const ExpansionLimit limit = ExpansionLimit::for_ids(ids);
  for (int32_t id : ids) {
    if (!limit.allows(text.size())) limit.fail("tokenizer: decoder");
    if (const AddedToken* token = added_.by_id(id))
      text += token->content;
    else if (parts_.tokens.has(id))
      text += parts_.tokens.bytes(id);
    else
      throw UsageError(fmt::format("id {} is not in the vocabulary of {} ids", id, vocab_size_));
  }
  return text;
}

std::optional<int32_t> ByteBpe::id_of(std::string_view token) const {
  if (const AddedToken* added = added_.by_content(token)) return added->id;
  return parts_.tokens.find(token);
}

std::string ByteBpe::to_json() const {
  return parts_.source.empty() ? compose_tokenizer_json(parts_, added_.all(), compose_post_processor(*this))
                               : parts_.source;
}

void ByteBpe::save(const std::string& folder) const {
  obs::write_whole_file(folder + "/tokenizer.json", to_json());
}

SpecialTokens guess_special(const Tokenizer& tokenizer) {
  auto first_of = [&](std::initializer_list<std::string_view> names) -> std::optional<int32_t> {
    for (std::string_view name : names)
      if (std::optional<int32_t> id = tokenizer.id_of(name)) return id;
    return std::nullopt;
  };
  SpecialTokens special;
  special.bos = first_of({"<|begin_of_text|>", "<s>", "<bos>", "<|startoftext|>", "<|endoftext|>"});
  special.eos = first_of({"<|end_of_text|>", "</s>", "<eos>", "<|endoftext|>"});
  special.pad = first_of({"<pad>", "[PAD]", "<|finetune_right_pad_id|>", "<|pad|>"});
  special.mask = first_of({"[MASK]", "<mask>"});
  special.cls = first_of({"[CLS]"});
  special.sep = first_of({"[SEP]"});
  special.unk = first_of({"<unk>", "[UNK]"});
  return special;
}

}  // namespace esp::data
