// Writing: files into a folder with a temporary name, the manifest last, then one rename. One rank does so by itself;
// several share the folder, and rank 0 makes one manifest of what they wrote.
#include <unistd.h>

#include <cstdio>
#include <filesystem>
#include <functional>

#include <fmt/format.h>

#include "esp/base/error.h"
#include "esp/ckpt/attempt.h"
#include "esp/ckpt/checkpoint.h"
#include "esp/ckpt/manifest.h"
#include "esp/ckpt/own_file.h"
#include "esp/ckpt/part.h"
#include "esp/ckpt/safetensors.h"
#include "esp/ckpt/steps.h"
#include "esp/obs/file.h"

namespace esp::ckpt {
namespace {

namespace fs = std::filesystem;

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

std::function<void(uint64_t, std::span<std::byte>)> in_bytes(const Piece& piece) {
  if (!piece.read) return {};
  return [&piece](uint64_t first, std::span<std::byte> to) {
    const DType type = piece.values.dtype();
    const auto size = static_cast<int64_t>(size_of(type));
    piece.read(static_cast<int64_t>(first) / size,
               tensor::Tensor::borrow(to.data(), {static_cast<int64_t>(to.size()) / size}, type));
  };
}

// name(i, n) of the i-th of n files, from 1.
template <typename F>
void write_kind(const std::string& folder, std::span<const Piece> pieces, int64_t limit, Manifest& manifest, F&& name) {
  const auto shards = cut(pieces, limit);
  for (size_t i = 0; i < shards.size(); ++i) {
    const std::string file = name(i + 1, shards.size());
    std::vector<TensorToWrite> tensors;
    for (const Piece& piece : shards[i]) {
      // A whole tensor keeps its name and shape, so that any safetensors tool reads it; a part is a flat run.
      const bool all = whole(piece);
      const std::string key = all ? piece.name : fmt::format("{}@{}", piece.name, tensors.size());
      tensors.push_back({key, piece.values.dtype(),
                         all ? dims_of(piece.global_shape) : std::vector<int64_t>{piece.values.count()},
                         piece.values.data(), in_bytes(piece)});
      TensorRecord& record = manifest.tensors[piece.name];
      record.dtype = piece.values.dtype();
      record.shape = dims_of(piece.global_shape);
      record.pieces.push_back({file, key, piece.begin, piece.extent, piece.first, piece.values.count(), {}});
    }
    const WrittenFile written = write_safetensors(folder + "/" + file, tensors);
    for (size_t k = 0; k < tensors.size(); ++k)
      for (PieceRecord& piece : manifest.tensors[shards[i][k].name].pieces)
        if (piece.file == file && piece.key == tensors[k].name) piece.checksum = written.tensor_checksums[k];
    manifest.files[file] = {written.bytes, written.checksum};
  }
}

// The caller's own files, into a folder apart first: in this one other ranks are writing.
void add_files(const std::string& folder, const SaveOptions& options, Manifest& manifest) {
  if (!options.add_files) return;
  const std::string apart = folder + "/added";
  std::error_code error;
  fs::create_directory(apart, error);
  if (error) throw IoError(fmt::format("{}: {}", apart, error.message()));
  options.add_files(apart);
  std::vector<std::string> names;
  for (auto at = fs::directory_iterator(apart, error); !error && at != fs::directory_iterator(); at.increment(error))
    names.push_back(at->path().filename().string());
  if (error) throw IoError(fmt::format("{}: {}", apart, error.message()));
  for (const std::string& name : names) {
    const std::string from = apart + "/" + name, to = folder + "/" + name;
    {
      obs::File file = open_own_file(from);
      file.sync();
      const std::string bytes = file.read(0, file.size());
      manifest.added[name] = {bytes.size(), checksum_of(std::as_bytes(std::span(bytes)))};
    }
    if (std::rename(from.c_str(), to.c_str()) != 0)
      throw IoError(fmt::format("{} cannot become {}: {}", from, to, errno_text(errno)));
  }
  fs::remove(apart, error);
}

void write_manifest(const std::string& folder, const Manifest& manifest) {
  obs::write_whole_file(folder + "/" + kManifestName, to_json(manifest), true);
}

void check(const SaveOptions& options) {
  if (options.check_folder) options.check_folder();
}

std::string save_alone(const std::string& dir, const Snapshot& snapshot, const SaveOptions& options) {
  clear_for_writing(dir);
  const std::string name = step_name(snapshot.step), path = dir + "/" + name;
  const std::string temporary = fmt::format("{}/{}{}.{}", dir, kPartialPrefix, name, getpid());
  std::error_code error;
  fs::create_directory(temporary, error);
  if (error) throw IoError(fmt::format("checkpoint folder {}: {}", temporary, error.message()));
  try {
    Manifest manifest;
    manifest.step = snapshot.step;
    manifest.state = snapshot.state;
    const auto write = [&](std::string_view kind, std::span<const Piece> pieces) {
      write_kind(temporary, pieces, options.shard_bytes, manifest,
                 [&](size_t i, size_t n) { return fmt::format("{}-{:05}-of-{:05}.safetensors", kind, i, n); });
    };
    write("model", snapshot.model);
    write("optimizer", snapshot.optimizer);
    add_files(temporary, options, manifest);
    write_manifest(temporary, manifest);
    check(options);
    put_in_place(dir, temporary, path);
  } catch (...) {
    fs::remove_all(temporary, error);
    throw;
  }
  return path;
}

Part write_part(const std::string& folder, const Snapshot& snapshot, const SaveOptions& options) {
  Part part{options.rank, options.world, {}};
  part.manifest.step = snapshot.step;
  part.manifest.attempt = options.token;
  part.manifest.state = snapshot.state;
  const auto write = [&](std::string_view kind, std::span<const Piece> pieces) {
    write_kind(folder, pieces, options.shard_bytes, part.manifest,
               [&](size_t i, size_t) { return fmt::format("{}{:05}.safetensors", own_prefix(kind, options.rank), i); });
  };
  write("model", snapshot.model);
  write("optimizer", snapshot.optimizer);
  return part;
}

// Rank 0, with everybody's part in hand.
void make_one(const std::string& folder, const std::vector<Part>& parts) {
  const Merged merged = merge(parts);
  for (const auto& [from, to] : merged.renamed)
    if (std::rename((folder + "/" + from).c_str(), (folder + "/" + to).c_str()) != 0)
      throw IoError(fmt::format("{}/{} cannot become {}: {}", folder, from, to, errno_text(errno)));
  write_manifest(folder, merged.manifest);
}

std::string save_together(const std::string& dir, const Snapshot& snapshot, const SaveOptions& options) {
  Attempt attempt(dir, snapshot.step, options);
  try {
    attempt.begin();
    Part part = write_part(attempt.folder(), snapshot, options);
    if (options.rank != 0) {
      attempt.hand_in(part);
      attempt.await_end();
    } else {
      add_files(attempt.folder(), options, part.manifest);
      make_one(attempt.folder(), attempt.collect(std::move(part)));
      check(options);
      attempt.complete();
    }
  } catch (const std::exception& error) {
    check(options);
    throw IoError(attempt.give_up(error.what()));
  }
  return attempt.path();
}

}  // namespace

std::string save(const std::string& dir, const Snapshot& snapshot, const SaveOptions& options) {
  check(options);
  const std::string path =
      options.world == 1 ? save_alone(dir, snapshot, options) : save_together(dir, snapshot, options);
  check(options);
  if (options.rank == 0) {
    remove_failed(dir);
    remove_old(dir, options.keep, path);
  }
  return path;
}

}  // namespace esp::ckpt
