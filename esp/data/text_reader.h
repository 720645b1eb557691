// Documents out of text files and files of records (records.h), in pieces of bounded size.
//
// A record is a document and one piece. A text file is a document; a long one comes in pieces that are cut where no
// word can be cut: before a letter or digit that begins a line, else before any line, else between words, else between
// characters. Where cuts lie depends on the text alone, so reading may stop after any piece and go on there later.
// A byte order mark at the beginning of a text is not part of it.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "esp/data/byte_stream.h"
#include "esp/data/inputs.h"
#include "esp/data/records.h"

namespace esp::data {

// Where the next piece begins. Offsets count decompressed bytes.
struct TextCursor {
  uint64_t input = 0, offset = 0, line = 1;  // line: of a text unused, of records their line or number
  bool inside = false;                       // it goes on with a document
  bool operator==(const TextCursor&) const = default;
};

struct TextPiece {
  std::string text;
  bool ends_document = false;
  TextCursor after;
};

struct TextReaderOptions {
  std::string text_key = "text";
  size_t max_line_bytes = size_t{64} << 20;
  size_t piece_bytes = size_t{1} << 20;
};

class TextReader {
 public:
  TextReader(std::vector<Input> inputs, const TextReaderOptions& options, const TextCursor& start = {});
  // False at the end of the last input. Damage is IoError with file and place.
  bool next(TextPiece& piece);

 private:
  void open();
  bool next_record(TextPiece& piece);
  bool next_text(TextPiece& piece);

  std::vector<Input> inputs_;
  TextReaderOptions options_;
  TextCursor at_;
  std::unique_ptr<RecordReader> records_;  // of the open input, when it holds records
  std::unique_ptr<ByteStream> stream_;     // when it is text
  std::string buffer_;
  bool ended_ = false;
};

// How much of `text` the next piece takes: at most `limit`, at least 1. `text` is longer than `limit`.
size_t find_cut(std::string_view text, size_t limit);

}  // namespace esp::data
