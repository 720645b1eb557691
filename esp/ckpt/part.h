// What one of several ranks wrote: the manifest of its files alone. Rank 0 reads everybody's and makes one of them.
//
// While they are written, a rank's files carry its number (model-r00002-00001.safetensors), for nobody knows yet how
// many there will be; merging numbers them through. Parts are read with the same distrust as any file.
#pragma once

#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "esp/ckpt/manifest.h"

namespace esp::ckpt {

struct Part {
  int rank = 0, world = 1;
  Manifest manifest;  // its `state` is not written
};

std::string part_name(int rank);                          // "part-00002.json"
std::string own_prefix(std::string_view kind, int rank);  // "model-r00002-"
std::string to_json(const Part& part);
Part parse_part(std::string_view text, std::string_view name);  // IoError says what is wrong

struct Merged {
  Manifest manifest;
  std::vector<std::pair<std::string, std::string>> renamed;  // files, from and to
};
// Step, attempt and state are those of the first part. IoError when two parts tell different things of a tensor, or
// when together they do not hold every element of it exactly once.
Merged merge(const std::vector<Part>& parts);

}  // namespace esp::ckpt
