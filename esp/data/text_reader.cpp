#include "esp/data/text_reader.h"

#include <algorithm>

#include "esp/base/check.h"

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
    : inputs_(std::move(inputs)), options_(options), at_(start), json_({options.text_key}) {
  for (const Input& input : inputs_) ESP_CHECK(input.kind == InputKind::text || input.kind == InputKind::jsonl);
}

void TextReader::open() {
  const Input& input = inputs_[at_.input];
  std::unique_ptr<ByteStream> stream = open_byte_stream(input.path);
  if (input.kind == InputKind::jsonl) {
    lines_ = std::make_unique<LineReader>(std::move(stream), input.path, options_.max_line_bytes);
    lines_->seek(at_.offset, at_.line);
    return;
  }
  stream->skip(at_.offset);
  stream_ = std::move(stream);
  buffer_.clear();
  ended_ = false;
}

bool TextReader::next(TextPiece& piece) {
  while (at_.input < inputs_.size()) {
    if (!lines_ && !stream_) open();
    if (lines_ ? next_line(piece) : next_text(piece)) return true;
    lines_.reset();
    stream_.reset();
    at_ = {at_.input + 1, 0, 1, false};
  }
  return false;
}

bool TextReader::next_line(TextPiece& piece) {
  std::string_view line;
  if (!lines_->next(line)) return false;
  const std::string where = lines_->where();
  json_.parse(line, where);
  piece.text = std::move(json_.text(0, where));
  piece.ends_document = true;
  at_.offset = lines_->offset();
  at_.line = lines_->number() + 1;
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
