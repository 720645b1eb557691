// Reads the records of a file one after the other and keeps the requested keys: JSON lines, objects of one JSON array,
// or rows of CSV or TSV. The largest record bounds the memory. A reader can stop after any record and resume there.
//
//   json       one array of objects, with the same rules as a line of JSON (jsonl.h)
//   csv, tsv   RFC 4180. The first row names the columns. Fields may be quoted and then contain delimiters, line ends
//              and doubled quotes. Rows end with LF, CRLF or CR; empty rows are skipped. All rows have the same number
//              of fields. A field that is a whole number can be used as a class label.
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

// Start of a record: its offset in the decompressed data, and its number or line, from 1.
struct RecordPosition {
  uint64_t offset = 0, number = 1;
};

class RecordReader {
 public:
  virtual ~RecordReader() = default;
  // Returns false at the end. Damaged data is an IoError with file and position.
  virtual bool next() = 0;
  // Field of the current record, by index into the keys.
  virtual JsonField field(size_t key) const = 0;
  // Throws an IoError that lists the keys of the record if a key is absent.
  virtual void require(size_t key) const = 0;
  // Returns the string at a key. If the key is absent, the IoError lists the keys of the record.
  virtual std::string& text(size_t key) = 0;
  virtual std::string location() const = 0;  // "corpus.csv, line 17"
  virtual RecordPosition after() const = 0;
};

// Each call of `open` returns the bytes of the file from the beginning.
using OpenStream = std::function<std::unique_ptr<ByteStream>()>;
std::unique_ptr<RecordReader> make_record_reader(InputKind kind, const OpenStream& open, std::string name,
                                                 std::vector<std::string> keys, size_t max_record_bytes,
                                                 const RecordPosition& start = {});
std::unique_ptr<RecordReader> open_records(const Input& input, std::vector<std::string> keys, size_t max_record_bytes,
                                           const RecordPosition& start = {});

}  // namespace esp::data
