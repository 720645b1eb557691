#include "esp/ckpt/hf_folder.h"

#include <filesystem>

#include <fmt/format.h>
#include <nlohmann/json.hpp>

#include "esp/base/error.h"
#include "esp/base/table.h"
#include "esp/obs/file.h"

namespace esp::ckpt {
namespace {

namespace fs = std::filesystem;
constexpr const char* kSingle = "model.safetensors";
constexpr const char* kIndex = "model.safetensors.index.json";

// A plain file name, not a path: an index must not reference files outside its folder.
bool plain_file_name(const std::string& name) {
  return !name.empty() && name[0] != '.' && name.find('/') == std::string::npos && name.find('\0') == std::string::npos;
}

}  // namespace

WeightIndex parse_weight_index(std::string_view text, std::string_view name) {
  const Json json = parse_json(text, name);
  const auto refuse = [&](const std::string& what) { throw IoError(fmt::format("{}: {}", name, what)); };
  if (!json.is_object() || !json.contains("weight_map") || !json["weight_map"].is_object())
    refuse("got no weight_map; expected an object of tensor names and files");
  WeightIndex index;
  for (const auto& [tensor, file] : json["weight_map"].items()) {
    if (!file.is_string() || !plain_file_name(file.get<std::string>()))
      refuse(fmt::format("tensor {}: got file {}; expected a plain file name", tensor, file.dump()));
    index.file_of.emplace(tensor, file.get<std::string>());
  }
  if (json.contains("metadata") && json["metadata"].is_object() && json["metadata"].contains("total_size")) {
    // Some writers store total_size as a floating-point number.
    const Json& size = json["metadata"]["total_size"];
    if (size.is_number_unsigned()) {
      index.total_size = size.get<uint64_t>();
    } else if (!size.is_number_float() || !(size.get<double>() >= 0) || size.get<double>() > 0x1p63) {
      refuse(fmt::format("metadata.total_size: got {}; expected a number of bytes", size.dump()));
    } else {
      index.total_size = static_cast<uint64_t>(size.get<double>());
    }
  }
  return index;
}

std::string to_json(const WeightIndex& index) {
  Json json = {{"metadata", {{"total_size", index.total_size}}}, {"weight_map", Json::object()}};
  // Rows are inserted directly, because json["name"] searches all names linearly.
  auto& rows = json["weight_map"].get_ref<Json::object_t&>();
  for (const auto& [tensor, file] : index.file_of) rows.emplace_back(tensor, file);
  return json.dump(2) + "\n";
}

HfFolder::HfFolder(const std::string& path) : path_(path) {
  const auto at = [&](const std::string& file) { return path + "/" + file; };
  if (fs::exists(at(kSingle))) {
    files_.push_back(std::make_unique<SafetensorsFile>(at(kSingle)));
    for (const TensorEntry& entry : files_[0]->tensors()) tensors_[entry.name] = {files_[0].get(), &entry};
    return;
  }
  if (!fs::exists(at(kIndex)))
    throw IoError(fmt::format(
        "{}: got a folder without {} and without {}; expected one of them{}", path, kSingle, kIndex,
        fs::exists(at("pytorch_model.bin")) ? ". pytorch_model.bin is not read, because reading it runs code: save the "
                                              "model with safe_serialization=True first"
                                            : ""));
  const WeightIndex index = parse_weight_index(obs::read_whole_file(at(kIndex), kMaxJsonBytes), at(kIndex));
  std::map<std::string, const SafetensorsFile*> opened;
  for (const auto& [tensor, name] : index.file_of) {
    const SafetensorsFile*& file = opened[name];
    if (!file) {
      files_.push_back(std::make_unique<SafetensorsFile>(at(name)));
      file = files_.back().get();
    }
    const TensorEntry* entry = file->find(tensor);
    if (!entry)
      throw IoError(fmt::format("{}: the index lists tensor {} in {}, but that file does not contain it", at(kIndex),
                                tensor, name));
    tensors_[tensor] = {file, entry};
  }
}

void HfFolder::rename(const std::function<std::string(const std::string&)>& spelling) {
  std::map<std::string, TensorRef, std::less<>> renamed;
  for (const auto& [name, found] : tensors_)
    if (const auto [at, is_new] = renamed.emplace(spelling(name), found); !is_new)
      throw IoError(fmt::format("{}: got the same tensor under two names, {} and {}; expected one", path_,
                                at->second.entry->name, found.entry->name));
  tensors_ = std::move(renamed);
  taken_.clear();
}

std::optional<HfFolder::TensorRef> HfFolder::find(std::string_view name) const {
  const auto found = tensors_.find(name);
  return found == tensors_.end() ? std::nullopt : std::optional(found->second);
}

HfFolder::TensorRef HfFolder::take(std::string_view name) {
  if (const auto found = tensors_.find(name); found != tensors_.end()) {
    taken_.insert(found->first);
    return found->second;
  }
  const std::vector<std::string> have = names();
  const std::string_view near = nearest_name(name, {have.begin(), have.end()});
  throw IoError(fmt::format("{}: no tensor {} among {} tensors{}", path_, name, have.size(),
                            near.empty() ? "" : fmt::format("; the nearest is {}", near)));
}

std::vector<std::string> HfFolder::names() const {
  std::vector<std::string> names;
  for (const auto& [name, found] : tensors_) names.push_back(name);
  return names;
}

std::vector<std::string> HfFolder::unused_names() const {
  std::vector<std::string> names;
  for (const auto& [name, found] : tensors_)
    if (!taken_.contains(name)) names.push_back(name);
  return names;
}

bool is_hf_folder(const std::string& path) {
  return fs::exists(path + "/" + kHfConfigName) &&
         (fs::exists(path + "/" + kSingle) || fs::exists(path + "/" + kIndex) ||
          fs::exists(path + "/pytorch_model.bin"));
}

uint64_t DeferredTensor::bytes() const {
  uint64_t bytes = size_of(dtype);
  for (int64_t dim : shape) bytes *= static_cast<uint64_t>(dim);
  return bytes;
}

void write_hf_tensors(const std::string& folder, std::span<const DeferredTensor> tensors, uint64_t shard_bytes) {
  std::vector<std::span<const DeferredTensor>> shards;
  WeightIndex index;
  uint64_t in_shard = 0;
  size_t first = 0;
  for (size_t i = 0; i < tensors.size(); ++i) {
    if (i > first && in_shard + tensors[i].bytes() > shard_bytes) {
      shards.push_back(tensors.subspan(first, i - first));
      first = i;
      in_shard = 0;
    }
    in_shard += tensors[i].bytes();
    index.total_size += tensors[i].bytes();
  }
  shards.push_back(tensors.subspan(first));

  for (size_t i = 0; i < shards.size(); ++i) {
    const std::string file =
        shards.size() == 1 ? kSingle : fmt::format("model-{:05}-of-{:05}.safetensors", i + 1, shards.size());
    std::vector<std::vector<std::byte>> values;
    std::vector<TensorSource> made;
    for (const DeferredTensor& tensor : shards[i]) {
      values.emplace_back(tensor.bytes());
      tensor.make(values.back().data());
      made.push_back({tensor.name, tensor.dtype, tensor.shape, values.back().data()});
      index.file_of[tensor.name] = file;
    }
    write_safetensors(folder + "/" + file, made);
  }
  if (shards.size() > 1) obs::write_whole_file(folder + "/" + kIndex, to_json(index));
}

}  // namespace esp::ckpt
