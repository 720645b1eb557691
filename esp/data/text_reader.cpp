#include "esp/data/text_reader.h"

#include <algorithm>

#include "esp/base/check.h"
#include "esp/data/content_type.h"

namespace esp::data {
namespace {

bool is_word(char c) {
  return (c >= '0' && c <= '9') || (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z');
}
bool is_space(char c) {
  return c == ' ' || (c >= '\t' && c <= '\r');
}

}  // namespace

// Split patterns may join a line end with punctuation before it, or with white space or a slash after it, but never
// with a letter or digit after it. A cut before a letter or digit therefore gives the same tokens as the uncut text.
size_t find_cut(std::string_view text, size_t limit) {
  ESP_CHECK(limit > 0 && text.size() > limit);
  const size_t least = limit / 2;
  for (size_t at = limit; at > least; --at)
    if (text[at - 1] == '\n' && is_word(text[at])) return at;
  for (size_t at = limit; at > least; --at)
    if (text[at - 1] == '\n' && !is_space(text[at])) return at;
  for (size_t at = limit; at > least; --at)
    if (text[at] == ' ' && is_word(text[at - 1])) return at;
  size_t at = limit;
  // at most three continuation bytes (10xxxxxx) per UTF-8 character
  while (at > 1 && at + 3 > limit && (text[at] & 0xC0) == 0x80) --at;
  return at;
}

TextReader::TextReader(std::vector<Input> inputs, const TextReaderOptions& options, const TextCursor& start)
    : inputs_(std::move(inputs)), options_(options), at_(start) {
  for (const Input& input : inputs_) ESP_CHECK(holds_text(input.kind));
}

void TextReader::open() {
  const Input& input = inputs_[at_.input];
  if (input.kind != InputKind::text) {
    records_ = open_records(input, {options_.text_key}, options_.max_line_bytes, {at_.offset, at_.line});
    return;
  }
  stream_ = open_byte_stream(input.path);
  stream_->skip(at_.offset);
  buffer_.clear();
  ended_ = false;
}

bool TextReader::next(TextChunk& piece) {
  while (at_.input < inputs_.size()) {
    if (!records_ && !stream_) open();
    if (records_ ? next_record(piece) : next_text(piece)) return true;
    records_.reset();
    stream_.reset();
    at_ = {at_.input + 1, 0, 1, false};
  }
  return false;
}

bool TextReader::next_record(TextChunk& piece) {
  if (!records_->next()) return false;
  piece.text = std::move(records_->text(0));
  piece.ends_document = true;
  const RecordPosition after = records_->after();
  at_.offset = after.offset;
  at_.line = after.number;
  piece.after = at_;
  return true;
}

bool TextReader::next_text(TextChunk& piece) {
  // Reads one byte more than a chunk, to know whether the document continues.
  if (!ended_ && buffer_.size() <= options_.chunk_bytes) {
    size_t have = buffer_.size(), wanted = options_.chunk_bytes + 1;
    buffer_.resize(wanted);
    size_t got = stream_->read(std::span(buffer_).subspan(have));
    buffer_.resize(have + got);
    ended_ = have + got < wanted;
  }
  if (at_.offset == 0 && buffer_.starts_with(kByteOrderMark)) {
    buffer_.erase(0, kByteOrderMark.size());
    at_.offset = kByteOrderMark.size();
  }
  if (buffer_.empty()) return false;
  piece.ends_document = buffer_.size() <= options_.chunk_bytes;
  size_t take = piece.ends_document ? buffer_.size() : find_cut(buffer_, options_.chunk_bytes);
  piece.text.assign(buffer_, 0, take);
  buffer_.erase(0, take);
  at_.offset += take;
  at_.inside = !piece.ends_document;
  piece.after = at_;
  return true;
}

}  // namespace esp::data
