// manifest.json: which pieces of which tensors lie in which files. Read with the same distrust as any file.
//
// Version 2 begins with a checksum of all that follows it in the file, so that a flipped bit in a counter or in the run
// file is found like one in a tensor. Version 1, which had none, is still read.
#pragma once

#include <cstdint>
#include <map>
#include <string>
#include <string_view>
#include <vector>

#include <nlohmann/json.hpp>

#include "esp/base/dtype.h"
#include "esp/base/json.h"

namespace esp::ckpt {

struct PieceRecord {
  std::string file, key;               // tensor `key` of `file`, flat
  std::vector<int64_t> begin, extent;  // the box; empty: the whole tensor
  int64_t first = 0, count = 0;        // flat elements of the box
  std::string checksum;                // XXH3-64 of its bytes: tells which tensor of a damaged file it is
};

struct TensorRecord {
  DType dtype = DType::f32;
  std::vector<int64_t> shape;
  std::vector<PieceRecord> pieces;
};

struct FileRecord {
  uint64_t bytes = 0;
  std::string checksum;
};

struct Manifest {
  int64_t step = 0;
  std::string attempt;                      // by which ranks that wrote together know theirs; empty when one rank wrote
  std::map<std::string, FileRecord> files;  // safetensors
  std::map<std::string, FileRecord> added;  // of the caller's own: a tokenizer
  std::map<std::string, TensorRecord, std::less<>> tensors;
  Json state;
};

inline constexpr const char* kManifestName = "manifest.json";

// The whole number that a value of a manifest is; IoError for anything else, since what is past the range of an int64_t
// has no conversion.
int64_t whole_number(const Json& value);

std::string to_json(const Manifest& manifest);
Manifest parse_manifest(std::string_view text, std::string_view name);  // IoError says what is wrong

}  // namespace esp::ckpt
