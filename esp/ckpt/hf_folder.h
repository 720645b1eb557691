// HfFolder: reads the tensors of a Hugging Face folder by name. They are in model.safetensors, or in shards listed in
// model.safetensors.index.json. Independent of the model architecture.
//
//   config.json   model.safetensors
//   config.json   model-00001-of-00002.safetensors …   model.safetensors.index.json
//
// Folders of the same model may have tensor names with or without the class prefix ("transformer.", "model.", "bert.").
// The caller knows the model and renames the tensors to one form. One thread uses a reader. Writing needs an existing
// folder.
#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <set>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "esp/base/json.h"
#include "esp/ckpt/safetensors.h"

namespace esp::ckpt {

inline constexpr const char* kHfConfigName = "config.json";

// The content of model.safetensors.index.json: tensor names and the file of each.
struct WeightIndex {
  std::map<std::string, std::string, std::less<>> file_of;
  uint64_t total_size = 0;  // bytes of all tensors, as written in the index; 0 if the index has no such entry
};
WeightIndex parse_weight_index(std::string_view text, std::string_view name);  // throws IoError with the reason
std::string to_json(const WeightIndex& index);

class HfFolder {
 public:
  explicit HfFolder(const std::string& path);  // throws an IoError that names a missing or malformed file

  const std::string& path() const { return path_; }

  struct TensorRef {
    const SafetensorsFile* file;
    const TensorEntry* entry;
    std::vector<std::byte> bytes() const { return file->bytes(*entry); }
  };
  // Renames every tensor from `name` to spelling(name). Throws IoError if two tensors get the same new name.
  void rename(const std::function<std::string(const std::string&)>& spelling);
  std::optional<TensorRef> find(std::string_view name) const;
  // Like `find`, and marks the tensor as used. If it is missing, the IoError names it and the most similar name in the
  // folder.
  TensorRef take(std::string_view name);

  std::vector<std::string> names() const;
  std::vector<std::string> unused_names() const;

 private:
  std::string path_;
  std::vector<std::unique_ptr<SafetensorsFile>> files_;
  std::map<std::string, TensorRef, std::less<>> tensors_;
  std::set<std::string, std::less<>> taken_;
};

// True if the folder has config.json and either model.safetensors or its index.
bool is_hf_folder(const std::string& path);

// A tensor that is computed only when its file is written. Therefore at most the tensors of one file are in memory at a
// time.
struct DeferredTensor {
  std::string name;
  DType dtype = DType::f32;
  std::vector<int64_t> shape;
  std::function<void(std::byte* to)> make;

  uint64_t bytes() const;
};

// Writes one file if all tensors fit in `shard_bytes`, else shards and their index. The file metadata contains format =
// "pt", which some readers require. All files are synced to disk.
void write_hf_tensors(const std::string& folder, std::span<const DeferredTensor> tensors, uint64_t shard_bytes);

}  // namespace esp::ckpt
