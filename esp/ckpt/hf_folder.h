// The tensors of a Hugging Face folder, by name: model.safetensors, or shards named by model.safetensors.index.json.
// Knows no model.
//
//   config.json   model.safetensors
//   config.json   model-00001-of-00002.safetensors …   model.safetensors.index.json
//
// The same model comes with and without the prefix of its class ("transformer.", "model.", "bert."); whoever knows the
// model renames them all to one spelling. Reading maps the files; a reader is used from one thread. Writing goes into a
// folder the caller has made.
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

// model.safetensors.index.json: which file holds which tensor.
struct WeightIndex {
  std::map<std::string, std::string, std::less<>> file_of;
  uint64_t total_size = 0;  // bytes of all tensors, as the file says; 0 when it does not
};
WeightIndex parse_weight_index(std::string_view text, std::string_view name);  // IoError says what is wrong
std::string to_json(const WeightIndex& index);

class HfFolder {
 public:
  explicit HfFolder(const std::string& path);  // IoError: what is missing, or which file is malformed

  const std::string& path() const { return path_; }

  struct Found {
    const SafetensorsFile* file;
    const TensorEntry* entry;
    std::span<const std::byte> bytes() const { return file->bytes(*entry); }
  };
  // From here on a tensor is known by spelling(its name in the file). IoError when two become one.
  void rename(const std::function<std::string(const std::string&)>& spelling);
  std::optional<Found> find(std::string_view name) const;
  // Notes that it was asked for. IoError names the tensor, and the nearest that the folder has.
  Found take(std::string_view name);

  std::vector<std::string> names() const;
  std::vector<std::string> not_taken() const;

 private:
  std::string path_;
  std::vector<std::unique_ptr<SafetensorsFile>> files_;
  std::map<std::string, Found, std::less<>> tensors_;
  std::set<std::string, std::less<>> taken_;
};

// config.json beside tensors in one of the two forms.
bool is_hf_folder(const std::string& path);

// A tensor that is made when its file is written, so that no more than one file's worth is held in memory.
struct TensorToMake {
  std::string name;
  DType dtype = DType::f32;
  std::vector<int64_t> shape;
  std::function<void(std::byte* to)> make;

  uint64_t bytes() const;
};

// One file where everything fits `shard_bytes`, else shards and their index; metadata has format "pt", without which
// some readers refuse a file. Everything is synced.
void write_hf_tensors(const std::string& folder, std::span<const TensorToMake> tensors, uint64_t shard_bytes);

}  // namespace esp::ckpt
