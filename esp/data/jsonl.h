// JSON lines: one object per line, of which only the requested keys are kept. The complete line is still checked: it
// must be one valid JSON object in UTF-8, nested at most 32 levels deep, with no requested key twice.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <variant>
#include <vector>

#include "esp/data/byte_stream.h"

namespace esp::data {

// Splits a stream into lines without their line ends. Skips empty lines; a line longer than the limit is an IoError.
class LineReader {
 public:
  LineReader(std::unique_ptr<ByteStream> stream, std::string name, size_t max_line_bytes);
  // Continues at byte `offset`, which is the start of line `number` (counted from 1).
  void seek(uint64_t offset, uint64_t number);

  // Returns false at the end. `line` is valid until the next call.
  bool next(std::string_view& line);
  uint64_t offset() const { return offset_; }  // offset of the byte after the current line
  uint64_t number() const { return number_; }  // number of the current line, from 1
  std::string location() const;                // "corpus.jsonl, line 17"

 private:
  std::unique_ptr<ByteStream> stream_;
  std::string name_;
  size_t max_line_bytes_;
  std::string buffer_;
  size_t at_ = 0;  // start of the next line in buffer_
  uint64_t offset_ = 0, number_ = 0;
  bool ended_ = false;
};

// std::monostate: the key is absent or null. UnsupportedJsonValue: an object, an array, or a number with a fraction.
struct UnsupportedJsonValue {};
using JsonField = std::variant<std::monostate, std::string, int64_t, bool, UnsupportedJsonValue>;

class JsonLineParser {
 public:
  explicit JsonLineParser(std::vector<std::string> keys);
  // Parses one line. The message of an IoError begins with `where`.
  void parse(std::string_view line, const std::string& where);
  const JsonField& operator[](size_t key) const { return fields_[key]; }
  // Throws an IoError that lists the keys of the line if a key is absent.
  void require(size_t key, const std::string& where) const;
  // Returns the string at a key. If the key is absent, the IoError lists the keys of the line.
  std::string& text(size_t key, const std::string& where);

 private:
  std::vector<std::string> keys_;
  std::vector<JsonField> fields_;
  std::vector<bool> given_;        // the keys that the line has
  std::vector<std::string> seen_;  // some keys of the line, for error messages
};

}  // namespace esp::data
