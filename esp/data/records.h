// Records of a file, one after the other, of which a few keys are kept: lines of JSON, objects of one JSON array, rows
// of CSV or TSV. Memory is bounded by the largest record. Reading may stop after any record and go on there later.
//
//   json       one array, each element an object. What a line of JSON must hold, an element must
//   csv, tsv   RFC 4180: the first row names the columns; fields may be quoted and then hold delimiters, line ends and
//              doubled quotes. Rows end with LF, CRLF or CR; empty ones are skipped. A row has as many fields as the
//              first one. A field that is a whole number counts as one where a class is read.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "esp/data/byte_stream.h"
#include "esp/data/inputs.h"
#include "esp/data/jsonl.h"

namespace esp::data {

// Where a record begins: bytes of decompressed data before it, and its number or line, from 1.
struct RecordPosition {
  uint64_t offset = 0, number = 1;
};

class RecordReader {
 public:
  virtual ~RecordReader() = default;
  // False at the end. Damage is an IoError with file and place.
  virtual bool next() = 0;
  // Of the record at hand, by index into the keys.
  virtual JsonField field(size_t key) const = 0;
  // The text at a key; IoError names the keys there are when it is absent.
  virtual std::string& text(size_t key) = 0;
  virtual std::string where() const = 0;  // "corpus.csv, line 17"
  virtual RecordPosition after() const = 0;
};

// `open` gives the file's bytes from its beginning, each time it is called.
using OpenStream = std::function<std::unique_ptr<ByteStream>()>;
std::unique_ptr<RecordReader> make_record_reader(InputKind kind, const OpenStream& open, std::string name,
                                                 std::vector<std::string> keys, size_t max_record_bytes,
                                                 const RecordPosition& start = {});
std::unique_ptr<RecordReader> open_records(const Input& input, std::vector<std::string> keys, size_t max_record_bytes,
                                           const RecordPosition& start = {});

}  // namespace esp::data
