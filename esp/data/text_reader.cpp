#include "esp/data/text_reader.h"

#include <algorithm>

#include "esp/base/check.h"
#include "esp/data/content.h"

namespace esp::data {
namespace {

bool is_word(char c) {
  return (c >= '0' && c <= '9') || (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z');
}
bool is_space(char c) {
  return c == ' ' || (c >= '\t' && c <= '\r');
}

}  // namespace

// Split patterns tie a line end to the punctuation before it and to white space or a slash after it, never to a letter
// or digit after it: a cut there gives the tokens that the whole text gives.
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
  while (at > 1 && at + 3 > limit && (text[at] & 0xC0) == 0x80) --at;  // UTF-8 continues with 10xxxxxx, three at most
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

bool TextReader::next(TextPiece& piece) {
  while (at_.input < inputs_.size()) {
    if (!records_ && !stream_) open();
    if (records_ ? next_record(piece) : next_text(piece)) return true;
    records_.reset();
    stream_.reset();
    at_ = {at_.input + 1, 0, 1, false};
  }
  return false;
}

bool TextReader::next_record(TextPiece& piece) {
  if (!records_->next()) return false;
  piece.text = std::move(records_->text(0));
  piece.ends_document = true;
  const RecordPosition after = records_->after();
  at_.offset = after.offset;
  at_.line = after.number;
  piece.after = at_;
  return true;
}

bool TextReader::next_text(TextPiece& piece) {
  // One byte more than a piece: only then is it known whether the document goes on.
  if (!ended_ && buffer_.size() <= options_.piece_bytes) {
    size_t have = buffer_.size(), wanted = options_.piece_bytes + 1;
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
  piece.ends_document = buffer_.size() <= options_.piece_bytes;
  size_t take = piece.ends_document ? buffer_.size() : find_cut(buffer_, options_.piece_bytes);
  piece.text.assign(buffer_, 0, take);
  buffer_.erase(0, take);
  at_.offset += take;
  at_.inside = !piece.ends_document;
  piece.after = at_;
  return true;
}

}  // namespace esp::data
