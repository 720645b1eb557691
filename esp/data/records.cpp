#include "esp/data/records.h"

#include <algorithm>
#include <charconv>

#include <fmt/format.h>
#include <fmt/ranges.h>

#include "esp/base/check.h"
#include "esp/base/error.h"
#include "esp/data/content_type.h"

namespace esp::data {
namespace {

constexpr size_t kChunkBytes = size_t{1} << 17;
constexpr size_t kColumnsInMessages = 12;

// A sliding window over a stream that starts at the current record.
class StreamWindow {
 public:
  explicit StreamWindow(std::unique_ptr<ByteStream> stream) : stream_(std::move(stream)) {}

  // True if the stream has a byte at `at`, counted from the start of the record.
  bool has(size_t at) {
    while (begin_ + at >= buffer_.size() && !ended_) {
      buffer_.erase(0, begin_);
      begin_ = 0;
      const size_t have = buffer_.size();
      buffer_.resize(have + kChunkBytes);
      const size_t got = stream_->read(std::span(buffer_).subspan(have));
      ended_ = got < kChunkBytes;
      buffer_.resize(have + got);
    }
    return begin_ + at < buffer_.size();
  }
  char operator[](size_t at) const { return buffer_[begin_ + at]; }
  std::string_view first(size_t bytes) const { return std::string_view(buffer_).substr(begin_, bytes); }
  // Moves the start of the current record forward by `bytes`.
  void drop(size_t bytes) {
    begin_ += bytes;
    offset_ += bytes;
  }
  void skip(uint64_t bytes) {
    stream_->skip(bytes);
    offset_ += bytes;
  }
  void drop_mark() {
    if (offset_ == 0 && has(kByteOrderMark.size() - 1) && first(kByteOrderMark.size()) == kByteOrderMark)
      drop(kByteOrderMark.size());
  }
  uint64_t offset() const { return offset_; }  // offset of the current record in the stream

 private:
  std::unique_ptr<ByteStream> stream_;
  std::string buffer_;
  size_t begin_ = 0;
  uint64_t offset_ = 0;
  bool ended_ = false;
};

// Splits one JSON array into the texts of its objects. It understands only strings and brackets; the objects are parsed
// later.
class ArraySplitter {
 public:
  ArraySplitter(std::unique_ptr<ByteStream> stream, std::string name, size_t max_bytes)
      : window_(std::move(stream)), name_(std::move(name)), max_bytes_(max_bytes) {}

  void seek(const RecordPosition& start) {
    window_.skip(start.offset);
    number_ = start.number - 1;
  }

  bool next(std::string_view& record) {
    if (ended_) return false;
    window_.drop(pending_);
    pending_ = 0;
    if (window_.offset() == 0) {
      window_.drop_mark();
      if (!skip_space()) return end();
      take('[', "an array of objects");
      if (peek("an object or ]") == ']') return end();
    } else if (peek(", or ] after a record") == ']') {
      return end();
    } else {
      take(',', ", or ] after a record");
    }
    ++number_;
    if (const char found = peek("an object"); found != '{')
      throw IoError(fmt::format("{}: got {}; expected an object", location(),
                                found == '"'   ? "a string"
                                : found == '[' ? "an array"
                                               : quoted(found)));
    const size_t bytes = object_bytes();
    record = window_.first(bytes);
    pending_ = bytes;
    return true;
  }
  std::string location() const { return fmt::format("{}, record {}", name_, number_); }
  RecordPosition after() const { return {window_.offset() + pending_, number_ + 1}; }

 private:
  static std::string quoted(char found) { return fmt::format("\"{}\"", found); }

  bool skip_space() {
    while (window_.has(0)) {
      const char c = window_[0];
      if (c != ' ' && c != '\n' && c != '\r' && c != '\t') return true;
      window_.drop(1);
    }
    return false;
  }
  char peek(std::string_view expected) {
    if (!skip_space()) throw IoError(fmt::format("{}: got the end of the file; expected {}", place(), expected));
    return window_[0];
  }
  void take(char c, std::string_view expected) {
    if (const char found = peek(expected); found != c)
      throw IoError(fmt::format("{}: got {}; expected {}", place(), quoted(found), expected));
    window_.drop(1);
  }
  std::string place() const { return number_ == 0 ? name_ : fmt::format("{}, after record {}", name_, number_); }

  size_t object_bytes() {
    int64_t depth = 0;
    bool in_string = false;
    for (size_t at = 0; window_.has(at); ++at) {
      if (at >= max_bytes_) throw IoError(fmt::format("{} is longer than {} bytes", location(), max_bytes_));
      const char c = window_[at];
      if (in_string) {
        if (c == '\\') ++at;
        in_string = c != '"';
      } else if (c == '"') {
        in_string = true;
      } else if (c == '{' || c == '[') {
        ++depth;
      } else if ((c == '}' || c == ']') && --depth == 0) {
        return at + 1;
      }
    }
    throw IoError(fmt::format("{}: got the end of the file; expected the end of the object", location()));
  }
  // Ends the records, after the array or in a file without an array. Any text that follows is an error.
  bool end() {
    if (window_.has(0)) window_.drop(1);
    if (skip_space())
      throw IoError(
          fmt::format("{}: got {} after the array; expected one array of objects", name_, quoted(window_[0])));
    ended_ = true;
    return false;
  }

  StreamWindow window_;
  std::string name_;
  size_t max_bytes_, pending_ = 0;
  uint64_t number_ = 0;
  bool ended_ = false;
};

// JSON lines with the interface of ArraySplitter.
class LineSplitter {
 public:
  LineSplitter(std::unique_ptr<ByteStream> stream, std::string name, size_t max_bytes)
      : lines_(std::move(stream), std::move(name), max_bytes) {}
  void seek(const RecordPosition& start) { lines_.seek(start.offset, start.number); }
  bool next(std::string_view& record) { return lines_.next(record); }
  std::string location() const { return lines_.location(); }
  RecordPosition after() const { return {lines_.offset(), lines_.number() + 1}; }

 private:
  LineReader lines_;
};

template <typename Splitter>
class JsonRecords : public RecordReader {
 public:
  JsonRecords(std::unique_ptr<ByteStream> stream, std::string name, std::vector<std::string> keys, size_t max_bytes,
              const RecordPosition& start)
      : splitter_(std::move(stream), std::move(name), max_bytes), json_(std::move(keys)) {
    if (start.offset > 0) splitter_.seek(start);
  }
  bool next() override {
    std::string_view record;
    if (!splitter_.next(record)) return false;
    json_.parse(record, splitter_.location());
    return true;
  }
  JsonField field(size_t key) const override { return json_[key]; }
  void require(size_t key) const override { json_.require(key, splitter_.location()); }
  std::string& text(size_t key) override { return json_.text(key, splitter_.location()); }
  std::string location() const override { return splitter_.location(); }
  RecordPosition after() const override { return splitter_.after(); }

 private:
  Splitter splitter_;
  JsonLineParser json_;
};

class DelimitedRecords : public RecordReader {
 public:
  DelimitedRecords(const OpenStream& open, char delimiter, std::string name, std::vector<std::string> keys,
                   size_t max_bytes, const RecordPosition& start)
      : window_(open()),
        delimiter_(delimiter),
        name_(std::move(name)),
        keys_(std::move(keys)),
        max_bytes_(max_bytes),
        columns_(keys_.size(), kAbsent) {
    read_header();
    if (start.offset == 0) return;
    window_ = StreamWindow(open());
    window_.skip(start.offset);
    next_line_ = start.number;
  }

  bool next() override {
    do {
      if (!read_row()) return false;
    } while (row_.size() == 1 && row_[0].empty());
    if (row_.size() != num_columns_)
      throw IoError(fmt::format("{}: got {} fields; expected {}, as in the first row. Quote fields that hold a {}",
                                location(), row_.size(), num_columns_, delimiter_ == '\t' ? "tab" : "comma"));
    return true;
  }
  JsonField field(size_t key) const override {
    return columns_[key] == kAbsent ? JsonField() : field_of(row_[columns_[key]]);
  }
  void require(size_t key) const override {
    if (columns_[key] == kAbsent)
      throw IoError(
          fmt::format("{}: has no column \"{}\"; its columns are: {}", name_, keys_[key], fmt::join(named_, ", ")));
  }
  std::string& text(size_t key) override {
    require(key);
    return row_[columns_[key]];
  }
  std::string location() const override { return fmt::format("{}, line {}", name_, line_); }
  RecordPosition after() const override { return {window_.offset(), next_line_}; }

 private:
  static constexpr size_t kAbsent = SIZE_MAX;

  // A table does not distinguish numbers from strings, so a field that is a whole number counts as one (for class
  // labels).
  static JsonField field_of(const std::string& text) {
    if (text.empty()) return std::monostate();
    int64_t number = 0;
    const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), number);
    const bool whole = error == std::errc() && end == text.data() + text.size() && fmt::to_string(number) == text;
    return whole ? JsonField(number) : JsonField(text);
  }

  std::string_view other_delimiters() const { return delimiter_ == '\t' ? ",;|" : ";\t|"; }

  // The header has one column that holds `found`: the table has another delimiter than its name says.
  [[noreturn]] void reject_delimiter(char found) const {
    const auto described = [](char c) { return c == '\t' ? std::string("tabs") : fmt::format("\"{}\"", c); };
    const bool renamed = found == '\t' || found == ',';
    const Compression compression = compression_of(name_);
    const std::string fix =
        renamed ? fmt::format("Rename it to .{}", found == ',' ? "csv" : "tsv")
                : fmt::format(
                      "Convert it: {} {} | python3 -c \"import csv, sys; "
                      "csv.writer(sys.stdout).writerows(csv.reader(sys.stdin, delimiter='{}'))\" > FILE.csv",
                      compression == Compression::gzip   ? "zcat"
                      : compression == Compression::zstd ? "zstdcat"
                                                         : "cat",
                      name_, found);
    throw IoError(
        fmt::format("{}: has no column \"{}\"; its columns are: {}. Got a table delimited by {}; expected {}. {}",
                    name_, keys_[0], row_[0].substr(0, 40), described(found), described(delimiter_), fix));
  }

  void read_header() {
    window_.drop_mark();
    do {
      if (!read_row()) return;
    } while (row_.size() == 1 && row_[0].empty());
    num_columns_ = row_.size();
    const bool known = std::find(keys_.begin(), keys_.end(), row_[0]) != keys_.end();
    if (num_columns_ == 1 && !known && !keys_.empty())
      if (const size_t at = row_[0].find_first_of(other_delimiters()); at != std::string::npos)
        reject_delimiter(row_[0][at]);
    for (size_t column = 0; column < row_.size(); ++column) {
      if (named_.size() < kColumnsInMessages) named_.push_back(row_[column].substr(0, 40));
      const auto key = std::find(keys_.begin(), keys_.end(), row_[column]);
      if (key == keys_.end()) continue;
      size_t& at = columns_[static_cast<size_t>(key - keys_.begin())];
      if (at != kAbsent)
        throw IoError(fmt::format("{}: has the column \"{}\" twice; expected it once", location(), *key));
      at = column;
    }
  }

  // Reads one row into row_; returns false at the end of the file.
  bool read_row() {
    row_.clear();
    line_ = next_line_;
    size_t at = 0;
    if (!window_.has(0)) return false;
    do {
      row_.emplace_back();
      const bool quoted = window_.has(at) && window_[at] == '"';
      at = quoted ? quoted_field(at + 1) : plain_field(at);
      if (!is_utf8(row_.back())) throw IoError(fmt::format("{}: field {} is not UTF-8", location(), row_.size()));
    } while (window_.has(at) && window_[at] == delimiter_ && ++at);
    if (window_.has(at)) at = after_line_end(at);
    window_.drop(at);
    return true;
  }
  size_t plain_field(size_t at) {
    const size_t begin = at;
    while (has(at) && window_[at] != delimiter_ && window_[at] != '\n' && window_[at] != '\r') ++at;
    row_.back() = window_.first(at).substr(begin);
    return at;
  }
  // Reads a quoted field. `at` is the position after the opening quote; returns the position after the closing quote.
  size_t quoted_field(size_t at) {
    for (; has(at); ++at) {
      if (window_[at] == '"') {
        if (!has(at + 1) || window_[at + 1] != '"') return after_quote(at + 1);
        ++at;
      }
      if (window_[at] == '\n') ++next_line_;
      row_.back() += window_[at];
    }
    throw IoError(
        fmt::format("{}: got the end of the file within a quoted field; expected a closing quote", location()));
  }
  size_t after_quote(size_t at) {
    const bool header = num_columns_ == 0 && row_.size() == 1;
    if (header && has(at) && other_delimiters().find(window_[at]) != std::string_view::npos)
      reject_delimiter(window_[at]);
    if (has(at) && window_[at] != delimiter_ && window_[at] != '\n' && window_[at] != '\r')
      throw IoError(
          fmt::format("{}: got \"{}\" after the closing quote of field {}; expected the delimiter or the end of "
                      "the row. A quote inside a quoted field is written twice",
                      location(), window_[at], row_.size()));
    return at;
  }
  size_t after_line_end(size_t at) {
    ++next_line_;
    const bool pair = window_[at] == '\r' && window_.has(at + 1) && window_[at + 1] == '\n';
    return at + (pair ? 2 : 1);
  }
  bool has(size_t at) {
    if (at > max_bytes_)
      throw IoError(
          fmt::format("{}: got a row of more than {} bytes; expected a shorter one. Is a closing quote "
                      "missing?",
                      location(), max_bytes_));
    return window_.has(at);
  }

  StreamWindow window_;
  char delimiter_;
  std::string name_;
  std::vector<std::string> keys_;
  size_t max_bytes_, num_columns_ = 0;
  std::vector<size_t> columns_;           // column of each key
  std::vector<std::string> row_, named_;  // named_: some column names, for error messages
  uint64_t line_ = 1, next_line_ = 1;
};

}  // namespace

std::unique_ptr<RecordReader> make_record_reader(InputKind kind, const OpenStream& open, std::string name,
                                                 std::vector<std::string> keys, size_t max_record_bytes,
                                                 const RecordPosition& start) {
  switch (kind) {
    case InputKind::jsonl:
      return std::make_unique<JsonRecords<LineSplitter>>(open(), std::move(name), std::move(keys), max_record_bytes,
                                                         start);
    case InputKind::json:
      return std::make_unique<JsonRecords<ArraySplitter>>(open(), std::move(name), std::move(keys), max_record_bytes,
                                                          start);
    case InputKind::csv:
    case InputKind::tsv:
      return std::make_unique<DelimitedRecords>(open, kind == InputKind::csv ? ',' : '\t', std::move(name),
                                                std::move(keys), max_record_bytes, start);
    default:
      ESP_CHECK(false, "{}: got an input kind without records; expected jsonl, json, csv or tsv", name);
  }
}

std::unique_ptr<RecordReader> open_records(const Input& input, std::vector<std::string> keys, size_t max_record_bytes,
                                           const RecordPosition& start) {
  return make_record_reader(
      input.kind, [&] { return open_byte_stream(input.path); }, input.path, std::move(keys), max_record_bytes, start);
}

}  // namespace esp::data
