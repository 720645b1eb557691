#include "esp/ckpt/partial_manifest.h"

#include <algorithm>
#include <array>
#include <limits>
#include <map>

#include <fmt/format.h>

#include "esp/base/error.h"

namespace esp::ckpt {
namespace {

constexpr std::array<std::string_view, 2> kKinds = {"model", "optimizer"};

// The kind ("model" or "optimizer") of a file that `rank` wrote. Throws IoError if the name does not belong to a file
// of this rank.
std::string_view kind_of(const std::string& file, int rank) {
  for (std::string_view kind : kKinds)
    if (file.starts_with(rank_file_prefix(kind, rank))) return kind;
  throw IoError(fmt::format("file {} does not belong to rank {}", file, rank));
}

// True if the slices cover each element exactly once. Contiguous ranges must follow each other without a gap. Boxes may
// interleave, so for them only the total number of elements is checked.
bool covers_each_element_once(const TensorRecord& tensor) {
  int64_t count = 1, held = 0;
  for (int64_t dim : tensor.shape)
    if (__builtin_mul_overflow(count, dim, &count)) return false;
  bool flat = true;
  std::vector<std::pair<int64_t, int64_t>> runs;
  for (const SliceRecord& slice : tensor.slices) {
    flat = flat && slice.begin.empty();
    if (__builtin_add_overflow(held, slice.count, &held)) return false;
    runs.emplace_back(slice.first, slice.count);
  }
  if (held != count) return false;
  std::sort(runs.begin(), runs.end());
  int64_t at = 0;
  for (const auto& [first, length] : runs) {
    if (flat && length > 0 && first != at) return false;
    at += length;
  }
  return true;
}

void add_tensor(Manifest& merged, const std::string& name, const TensorRecord& tensor,
                const std::map<std::string, std::string>& new_name, int rank) {
  const auto [at, is_new] = merged.tensors.try_emplace(name, TensorRecord{tensor.dtype, tensor.shape, {}});
  TensorRecord& record = at->second;
  if (record.dtype != tensor.dtype || record.shape != tensor.shape)
    throw IoError(fmt::format("{}: got dtype {}, shape [{}] on rank {}; other ranks have dtype {}, shape [{}]", name,
                              name_of(tensor.dtype), fmt::join(tensor.shape, ", "), rank, name_of(record.dtype),
                              fmt::join(record.shape, ", ")));
  for (SliceRecord slice : tensor.slices) {
    slice.file = new_name.at(slice.file);
    record.slices.push_back(std::move(slice));
  }
}

}  // namespace

std::string partial_manifest_name(int rank) {
  return fmt::format("part-{:05}.json", rank);
}

std::string rank_file_prefix(std::string_view kind, int rank) {
  return fmt::format("{}-r{:05}-", kind, rank);
}

std::string to_json(const PartialManifest& part) {
  Manifest manifest = part.manifest;
  manifest.state = {{"rank", part.rank}, {"world", part.world}};
  return to_json(manifest);
}

PartialManifest parse_partial_manifest(std::string_view text, std::string_view name) {
  PartialManifest part;
  part.manifest = parse_manifest(text, name);
  try {
    const int64_t rank = whole_number(part.manifest.state.at("rank"));
    const int64_t world = whole_number(part.manifest.state.at("world"));
    if (rank < 0 || rank >= world || world > std::numeric_limits<int>::max())
      throw IoError(fmt::format("{}: got rank {} of {} ranks; expected 0 <= rank < ranks", name, rank, world));
    part.rank = static_cast<int>(rank);
    part.world = static_cast<int>(world);
    for (const auto& [file, record] : part.manifest.files) kind_of(file, part.rank);
  } catch (const nlohmann::json::exception& error) {
    throw IoError(fmt::format("{}: {}", name, error.what()));
  } catch (const IoError& error) {
    throw IoError(fmt::format("{}: {}", name, error.what()));
  }
  return part;
}

MergedManifest merge(const std::vector<PartialManifest>& parts) {
  std::map<std::string_view, size_t> num_files;
  for (const PartialManifest& part : parts)
    for (const auto& [file, record] : part.manifest.files) ++num_files[kind_of(file, part.rank)];

  MergedManifest merged;
  merged.manifest.step = parts.front().manifest.step;
  merged.manifest.attempt = parts.front().manifest.attempt;
  merged.manifest.state = parts.front().manifest.state;
  merged.manifest.added = parts.front().manifest.added;
  std::map<std::string_view, size_t> numbered;
  for (const PartialManifest& part : parts) {
    std::map<std::string, std::string> new_name;
    for (const auto& [file, record] : part.manifest.files) {
      const std::string_view kind = kind_of(file, part.rank);
      const std::string to = fmt::format("{}-{:05}-of-{:05}.safetensors", kind, ++numbered[kind], num_files[kind]);
      merged.manifest.files[to] = record;
      merged.renamed.emplace_back(file, to);
      new_name[file] = to;
    }
    for (const auto& [name, tensor] : part.manifest.tensors)
      add_tensor(merged.manifest, name, tensor, new_name, part.rank);
  }
  for (const auto& [name, tensor] : merged.manifest.tensors)
    if (!covers_each_element_once(tensor))
      throw IoError(
          fmt::format("the slices of all ranks do not cover every element of tensor {} with shape [{}] exactly once",
                      name, fmt::join(tensor.shape, ", ")));
  return merged;
}

}  // namespace esp::ckpt
