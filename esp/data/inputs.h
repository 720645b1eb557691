// From what a user names to files and what each of them is. Order is that of the names given, and the byte order of
// paths below a folder or a glob, so that every machine sees the same corpus.
#pragma once

#include <string>
#include <string_view>
#include <vector>

namespace esp::data {

enum class InputKind { text, jsonl, bin, llmc, megatron };
std::string_view name_of(InputKind kind);

struct Input {
  std::string path;
  InputKind kind;
  bool operator==(const Input&) const = default;
};

// `format` is auto or the name of a kind. By itself a name decides: .jsonl .ndjson .json.gz .json.zst are jsonl; .bin
// and .idx are token files, told apart by a sibling .idx and the magic number; the rest is text. Below a folder hidden
// files and binary ones (a zero byte early on) are passed over; a folder with token files is taken for those alone.
// Nothing found is an IoError.
std::vector<Input> find_inputs(const std::vector<std::string>& paths, std::string_view format);

}  // namespace esp::data
