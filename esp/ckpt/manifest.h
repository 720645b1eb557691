// manifest.json: the file and position of every slice of every tensor. The reader treats it as untrusted input.
//
// Version 2 begins with a checksum of the rest of the file. The checksum detects a flipped bit in the manifest itself,
// for example in a step counter. Version 1 has no checksum and can still be read.
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

struct SliceRecord {
  std::string file, key;               // the slice is the flat tensor named `key` in `file`
  std::vector<int64_t> begin, extent;  // the box that contains the slice; empty: the whole tensor
  int64_t first = 0, count = 0;        // contiguous range of elements within the box, in row-major order
  std::string checksum;  // XXH3-64 of the slice's bytes; shows which tensors of a damaged file are damaged
};

struct TensorRecord {
  DType dtype = DType::f32;
  std::vector<int64_t> shape;
  std::vector<SliceRecord> slices;
};

struct FileRecord {
  uint64_t bytes = 0;
  std::string checksum;
};

struct Manifest {
  int64_t step = 0;
  // token of the attempt that wrote the checkpoint (SaveOptions::token); empty if one rank wrote it
  std::string attempt;
  std::map<std::string, FileRecord> files;  // safetensors files
  std::map<std::string, FileRecord> added;  // extra files from SaveOptions::add_files, for example a tokenizer
  std::map<std::string, TensorRecord, std::less<>> tensors;
  Json state;
};

inline constexpr const char* kManifestName = "manifest.json";

// The integer in a manifest field. Throws IoError if the value is not an integer or not within int64_t: converting such
// a value would be undefined behaviour.
int64_t whole_number(const Json& value);

std::string to_json(const Manifest& manifest);
Manifest parse_manifest(std::string_view text, std::string_view name);  // throws IoError with the reason

}  // namespace esp::ckpt
