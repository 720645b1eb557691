// Writing: files into a folder with a temporary name, the manifest last, then one rename.
#include <fcntl.h>
#include <unistd.h>

#include <algorithm>
#include <charconv>
#include <filesystem>

#include <fmt/format.h>

#include "esp/base/error.h"
#include "esp/ckpt/checkpoint.h"
#include "esp/ckpt/manifest.h"
#include "esp/ckpt/safetensors.h"
#include "esp/obs/file.h"

namespace esp::ckpt {
namespace {

namespace fs = std::filesystem;
constexpr std::string_view kPrefix = "step-";
constexpr std::string_view kTemporary = ".partial-";
constexpr size_t kMaxManifestBytes = size_t{100} << 20;

void sync_folder(const std::string& path) {
  obs::File(path, O_RDONLY | O_DIRECTORY).sync();
}

// Consecutive pieces, no file larger than the limit unless one piece is.
std::vector<std::span<const Piece>> cut(std::span<const Piece> pieces, int64_t limit) {
  std::vector<std::span<const Piece>> shards;
  size_t first = 0;
  int64_t bytes = 0;
  for (size_t i = 0; i < pieces.size(); ++i) {
    const auto size = static_cast<int64_t>(pieces[i].values.bytes());
    if (i > first && bytes + size > limit) {
      shards.push_back(pieces.subspan(first, i - first));
      first = i;
      bytes = 0;
    }
    bytes += size;
  }
  if (first < pieces.size()) shards.push_back(pieces.subspan(first));
  return shards;
}

std::vector<int64_t> dims_of(const tensor::Shape& shape) {
  return {shape.dims().begin(), shape.dims().end()};
}

bool whole(const Piece& piece) {
  return piece.begin.empty() && piece.first == 0 && piece.values.count() == piece.global_shape.count();
}

void write_kind(const std::string& folder, std::string_view kind, std::span<const Piece> pieces, int64_t limit,
                Manifest& manifest) {
  const auto shards = cut(pieces, limit);
  for (size_t i = 0; i < shards.size(); ++i) {
    const std::string file = fmt::format("{}-{:05}-of-{:05}.safetensors", kind, i + 1, shards.size());
    std::vector<TensorToWrite> tensors;
    for (const Piece& piece : shards[i]) {
      // A whole tensor keeps its name and shape, so that any safetensors tool reads it; a part is a flat run.
      const bool all = whole(piece);
      const std::string key = all ? piece.name : fmt::format("{}@{}", piece.name, tensors.size());
      tensors.push_back({key, piece.values.dtype(),
                         all ? dims_of(piece.global_shape) : std::vector<int64_t>{piece.values.count()},
                         piece.values.data()});
      TensorRecord& record = manifest.tensors[piece.name];
      record.dtype = piece.values.dtype();
      record.shape = dims_of(piece.global_shape);
      record.pieces.push_back({file, key, piece.begin, piece.extent, piece.first, piece.values.count()});
    }
    const WrittenFile written = write_safetensors(folder + "/" + file, tensors);
    manifest.files[file] = {written.bytes, written.checksum};
  }
}

std::optional<int64_t> step_of(const std::string& name) {
  if (!name.starts_with(kPrefix)) return std::nullopt;
  int64_t step = 0;
  const char* end = name.data() + name.size();
  const auto [stop, error] = std::from_chars(name.data() + kPrefix.size(), end, step);
  return error == std::errc() && stop == end && step >= 0 ? std::optional(step) : std::nullopt;
}

// Newest first.
std::vector<std::pair<int64_t, std::string>> steps_under(const std::string& dir) {
  std::vector<std::pair<int64_t, std::string>> found;
  std::error_code error;
  for (const auto& entry : fs::directory_iterator(dir, error))
    if (const auto step = step_of(entry.path().filename().string())) found.emplace_back(*step, entry.path().string());
  std::sort(found.rbegin(), found.rend());
  return found;
}

bool complete(const std::string& path) {
  try {
    const std::string manifest_path = path + "/" + kManifestName;
    const Manifest manifest = parse_manifest(obs::read_whole_file(manifest_path, kMaxManifestBytes), manifest_path);
    for (const auto& [name, record] : manifest.files) {
      std::error_code error;
      if (fs::file_size(path + "/" + name, error) != record.bytes || error) return false;
    }
    return true;
  } catch (const IoError&) {
    return false;
  }
}

void remove_old(const std::string& dir, int keep) {
  if (keep == 0) return;
  int kept = 0;
  for (const auto& [step, path] : steps_under(dir)) {
    if (complete(path) && ++kept > keep) {
      std::error_code error;
      fs::remove(path + "/" + kManifestName, error);  // first: from now on it is incomplete
      fs::remove_all(path, error);
    }
  }
}

}  // namespace

std::string save(const std::string& dir, const Snapshot& snapshot, const SaveOptions& options) {
  std::error_code error;
  fs::create_directories(dir, error);
  if (error) throw IoError(fmt::format("checkpoint folder {}: {}", dir, error.message()));
  // What an earlier attempt left half done.
  for (const auto& entry : fs::directory_iterator(dir, error))
    if (entry.path().filename().string().starts_with(kTemporary)) fs::remove_all(entry.path(), error);

  const std::string name = fmt::format("{}{}", kPrefix, snapshot.step), path = dir + "/" + name;
  const std::string temporary = fmt::format("{}/{}{}.{}", dir, kTemporary, name, getpid());
  fs::create_directory(temporary, error);
  if (error) throw IoError(fmt::format("checkpoint folder {}: {}", temporary, error.message()));
  try {
    Manifest manifest;
    manifest.step = snapshot.step;
    manifest.state = snapshot.state;
    write_kind(temporary, "model", snapshot.model, options.shard_bytes, manifest);
    write_kind(temporary, "optimizer", snapshot.optimizer, options.shard_bytes, manifest);
    if (options.add_files) options.add_files(temporary);
    obs::write_whole_file(temporary + "/" + kManifestName, to_json(manifest));
    obs::File(temporary + "/" + kManifestName, O_RDONLY).sync();
    sync_folder(temporary);
    fs::remove_all(path, error);  // the same step once more, after a resume
    fs::rename(temporary, path);
    sync_folder(dir);
  } catch (const fs::filesystem_error& failure) {
    fs::remove_all(temporary, error);
    throw IoError(fmt::format("checkpoint {}: {}", path, failure.what()));
  } catch (...) {
    fs::remove_all(temporary, error);
    throw;
  }
  remove_old(dir, options.keep);
  return path;
}

std::optional<std::string> newest_complete(const std::string& dir, std::vector<std::string>* skipped) {
  for (const auto& [step, path] : steps_under(dir)) {
    if (complete(path)) return path;
    if (skipped) skipped->push_back(path);
  }
  return std::nullopt;
}

}  // namespace esp::ckpt
