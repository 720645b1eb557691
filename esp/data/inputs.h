// From the paths a user names to files and what each of them is. Order is that of the names given, and the byte order
// of paths below a folder or a glob, so that every machine sees the same corpus.
#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "esp/base/log.h"

namespace esp::data {

enum class InputKind { text, jsonl, json, csv, tsv, bin, llmc, megatron };
std::string_view name_of(InputKind kind);
// Text or records of texts, rather than tokens.
bool holds_text(InputKind kind);

struct Input {
  std::string path;
  InputKind kind;
  bool operator==(const Input&) const = default;
};

// `format` is auto, records or the name of a kind.
//
//   auto     .bin and .idx are token files, told apart by a sibling .idx and the magic number. Every other file must be
//            text by its bytes (content.h). .csv, .tsv, .jsonl and .ndjson are records, and so is .json, of which the
//            content decides: an array of objects, or an object per line. The rest is text.
//   records  The same without token files; what has none of these names is jsonl.
//
// Below a folder, links to folders are followed once, hidden files are passed over, and files that are not text are
// passed over with one warning that names them; a JSON file that holds no records is a text there. A folder with token
// files is taken for those alone. A folder in which `datasets` saved a data set, or with files of Parquet and the like,
// is an IoError that says how to convert it, and so is a folder without text, or with a run or a model in it.
std::vector<Input> find_inputs(const std::vector<std::string>& paths, std::string_view format, const Log& log = {});

// Files of `b` that are in `a` too, also under other names, or as copies by their size and samples of their bytes.
std::vector<std::string> common_files(const std::vector<Input>& a, const std::vector<Input>& b);

}  // namespace esp::data
