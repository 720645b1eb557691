// PartialManifest: the manifest of the files that one rank of several wrote. Rank 0 reads the partial manifests of all
// ranks and merges them.
//
// During the save, file names contain the rank (model-r00002-00001.safetensors), because the total number of files is
// not known yet. The merge renumbers the files. Partial manifests are treated as untrusted input.
#pragma once

#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "esp/ckpt/manifest.h"

namespace esp::ckpt {

struct PartialManifest {
  int rank = 0, world = 1;
  Manifest manifest;  // without `state`, which a partial manifest does not store
};

std::string partial_manifest_name(int rank);                    // "part-00002.json" for rank 2
std::string rank_file_prefix(std::string_view kind, int rank);  // "model-r00002-" for rank 2
std::string to_json(const PartialManifest& part);
PartialManifest parse_partial_manifest(std::string_view text, std::string_view name);  // throws IoError with the reason

struct MergedManifest {
  Manifest manifest;
  std::vector<std::pair<std::string, std::string>> renamed;  // pairs of old and new file name
};
// Merges the partial manifests. Step, attempt and state come from the first one. Throws IoError if two of them give a
// tensor different types or shapes, or if together they do not contain every element exactly once.
MergedManifest merge(const std::vector<PartialManifest>& parts);

}  // namespace esp::ckpt
