// Reads documents from text files and record files (records.h) in chunks of bounded size.
//
// A record is one document and one chunk. A text file is one document. A long text file is cut into chunks at positions
// that no token crosses: before a letter or digit that begins a line, else before any line, else between words, else
// between characters. The cuts depend only on the text, so reading can stop after any chunk and resume there. A byte
// order mark at the start of a text is dropped.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "esp/data/byte_stream.h"
#include "esp/data/inputs.h"
#include "esp/data/records.h"

namespace esp::data {

// Position of the next chunk. Offsets count decompressed bytes.
struct TextCursor {
  uint64_t input = 0, offset = 0, line = 1;  // line: number of the record or line; unused for text files
  bool inside = false;                       // the next chunk continues a document
  bool operator==(const TextCursor&) const = default;
};

struct TextChunk {
  std::string text;
  bool ends_document = false;
  TextCursor after;
};

struct TextReaderOptions {
  std::string text_key = "text";
  size_t max_line_bytes = size_t{64} << 20;
  size_t chunk_bytes = size_t{1} << 20;
};

class TextReader {
 public:
  TextReader(std::vector<Input> inputs, const TextReaderOptions& options, const TextCursor& start = {});
  // Returns false at the end of the last input. Damaged data is an IoError with file and position.
  bool next(TextChunk& piece);

 private:
  void open();
  bool next_record(TextChunk& piece);
  bool next_text(TextChunk& piece);

  std::vector<Input> inputs_;
  TextReaderOptions options_;
  TextCursor at_;
  std::unique_ptr<RecordReader> records_;  // reader of the open input, if it has records
  std::unique_ptr<ByteStream> stream_;     // stream of the open input, if it is text
  std::string buffer_;
  bool ended_ = false;
};

// Size of the next chunk of `text`: between 1 and `limit`. `text` must be longer than `limit`.
size_t find_cut(std::string_view text, size_t limit);

}  // namespace esp::data
