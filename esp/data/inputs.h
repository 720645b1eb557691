// Resolves the paths given by the user to input files and their formats. Paths keep the order given; files below a
// folder or a glob are sorted by the bytes of their paths. Every machine therefore reads the same corpus.
#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "esp/base/log.h"

namespace esp::data {

enum class InputKind { text, jsonl, json, csv, tsv, bin, llmc, megatron };
std::string_view name_of(InputKind kind);
// True for text and for records with text; false for token files.
bool holds_text(InputKind kind);

struct Input {
  std::string path;
  InputKind kind;
  bool operator==(const Input&) const = default;
};

// `format` is auto, records, or the name of an InputKind.
//
//   auto     .bin and .idx are token files; a sibling .idx and the magic number tell which format. Any other file must
//            be text by its bytes (content_type.h). .csv, .tsv, .jsonl and .ndjson are records. A .json file is an
//            array of objects or has one object per line; its content decides. A file with any other name is text.
//   records  As auto, but without token files. A file with any other name is jsonl.
//
// In a folder, links to folders are followed once and hidden files are skipped. Files that are not text are skipped
// with one warning that lists them. A JSON file without records is read as text. If a folder contains token files, only
// those are read, with a warning that counts the others. Throws IoError for a folder saved by `datasets`, for a folder
// with archives, compressed files or data sets such as Parquet (the message says how to convert them), for a folder
// without text, and for a folder with a run or a model in it.
std::vector<Input> find_inputs(const std::vector<std::string>& paths, std::string_view format, const Log& log = {});

// Files of `b` that are also in `a`: the same file under any name, or a copy with equal size and equal sampled bytes.
std::vector<std::string> common_files(const std::vector<Input>& a, const std::vector<Input>& b);

}  // namespace esp::data
