#include "esp/ckpt/part.h"

#include <algorithm>
#include <array>
#include <limits>
#include <map>

#include <fmt/format.h>

#include "esp/base/error.h"

namespace esp::ckpt {
namespace {

constexpr std::array<std::string_view, 2> kKinds = {"model", "optimizer"};

// The kind of a rank's own file; a part that names another rank's file, or anything else, is refused.
std::string_view kind_of(const std::string& file, int rank) {
  for (std::string_view kind : kKinds)
    if (file.starts_with(own_prefix(kind, rank))) return kind;
  throw IoError(fmt::format("file {} is none of rank {}'s", file, rank));
}

// Flat runs are held to meet end to end. Boxes, which may interleave, are counted.
bool holds_each_element_once(const TensorRecord& tensor) {
  int64_t count = 1, held = 0;
  for (int64_t dim : tensor.shape)
    if (__builtin_mul_overflow(count, dim, &count)) return false;
  bool flat = true;
  std::vector<std::pair<int64_t, int64_t>> runs;
  for (const PieceRecord& piece : tensor.pieces) {
    flat = flat && piece.begin.empty();
    if (__builtin_add_overflow(held, piece.count, &held)) return false;
    runs.emplace_back(piece.first, piece.count);
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
    throw IoError(fmt::format("{} is {} [{}] on rank {} and {} [{}] on others", name, name_of(tensor.dtype),
                              fmt::join(tensor.shape, ", "), rank, name_of(record.dtype),
                              fmt::join(record.shape, ", ")));
  for (PieceRecord piece : tensor.pieces) {
    piece.file = new_name.at(piece.file);
    record.pieces.push_back(std::move(piece));
  }
}

}  // namespace

std::string part_name(int rank) {
  return fmt::format("part-{:05}.json", rank);
}

std::string own_prefix(std::string_view kind, int rank) {
  return fmt::format("{}-r{:05}-", kind, rank);
}

std::string to_json(const Part& part) {
  Manifest manifest = part.manifest;
  manifest.state = {{"rank", part.rank}, {"world", part.world}};
  return to_json(manifest);
}

Part parse_part(std::string_view text, std::string_view name) {
  Part part;
  part.manifest = parse_manifest(text, name);
  try {
    const int64_t rank = whole_number(part.manifest.state.at("rank"));
    const int64_t world = whole_number(part.manifest.state.at("world"));
    if (rank < 0 || rank >= world || world > std::numeric_limits<int>::max())
      throw IoError(fmt::format("rank {} of {}", rank, world));
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

Merged merge(const std::vector<Part>& parts) {
  std::map<std::string_view, size_t> num_files;
  for (const Part& part : parts)
    for (const auto& [file, record] : part.manifest.files) ++num_files[kind_of(file, part.rank)];

  Merged merged;
  merged.manifest.step = parts.front().manifest.step;
  merged.manifest.attempt = parts.front().manifest.attempt;
  merged.manifest.state = parts.front().manifest.state;
  merged.manifest.added = parts.front().manifest.added;
  std::map<std::string_view, size_t> numbered;
  for (const Part& part : parts) {
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
    if (!holds_each_element_once(tensor))
      throw IoError(fmt::format("the ranks together do not hold every element of {} [{}] exactly once", name,
                                fmt::join(tensor.shape, ", ")));
  return merged;
}

}  // namespace esp::ckpt
