// Lines of JSON, one object each, of which a few keys are read. Only their values are kept; the rest of the line is
// still checked: it must be one object of valid JSON and UTF-8, no deeper than 32, no wanted key twice.
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

// Lines of a stream, without their ends. A line beyond the limit is an IoError; empty ones are skipped.
class LineReader {
 public:
  LineReader(std::unique_ptr<ByteStream> stream, std::string name, size_t max_line_bytes);
  // Goes on at byte `offset`, which is the beginning of line `number` (counted from 1).
  void seek(uint64_t offset, uint64_t number);

  // False at the end. `line` is valid until the next call.
  bool next(std::string_view& line);
  uint64_t offset() const { return offset_; }  // of what follows the line
  uint64_t number() const { return number_; }  // of the line
  std::string where() const;                   // «corpus.jsonl, line 17»

 private:
  std::unique_ptr<ByteStream> stream_;
  std::string name_;
  size_t max_line_bytes_;
  std::string buffer_;
  size_t at_ = 0;  // of the next line in the buffer
  uint64_t offset_ = 0, number_ = 0;
  bool ended_ = false;
};

// null: absent. Other kinds of values (objects, numbers with a fraction) count as `other`.
struct JsonOther {};
using JsonField = std::variant<std::monostate, std::string, int64_t, bool, JsonOther>;

class JsonLine {
 public:
  explicit JsonLine(std::vector<std::string> keys);
  // IoError that begins with `where`.
  void parse(std::string_view line, const std::string& where);
  const JsonField& operator[](size_t key) const { return fields_[key]; }
  // The text at a key; IoError names the keys the line has when it is not there.
  std::string& text(size_t key, const std::string& where);

 private:
  std::vector<std::string> keys_;
  std::vector<JsonField> fields_;
  std::vector<std::string> seen_;  // some keys of the line, for messages
};

}  // namespace esp::data
