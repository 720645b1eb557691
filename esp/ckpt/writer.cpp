// Writes checkpoints: all files into a folder with a temporary name, the manifest last, then one rename. A single rank
// writes without coordination. Several ranks write into the same folder, and rank 0 merges their manifests.
#include <unistd.h>

#include <cstdio>
#include <filesystem>
#include <functional>

#include <fmt/format.h>

#include "esp/base/error.h"
#include "esp/ckpt/checkpoint.h"
#include "esp/ckpt/manifest.h"
#include "esp/ckpt/partial_manifest.h"
#include "esp/ckpt/regular_file.h"
#include "esp/ckpt/safetensors.h"
#include "esp/ckpt/save_attempt.h"
#include "esp/ckpt/steps.h"
#include "esp/obs/file.h"

namespace esp::ckpt {
namespace {

namespace fs = std::filesystem;

// Splits consecutive slices into files no larger than `limit`, unless a single slice is larger.
std::vector<std::span<const TensorSlice>> cut(std::span<const TensorSlice> slices, int64_t limit) {
  std::vector<std::span<const TensorSlice>> shards;
  size_t first = 0;
  int64_t bytes = 0;
  for (size_t i = 0; i < slices.size(); ++i) {
    const auto size = static_cast<int64_t>(slices[i].values.bytes());
    if (i > first && bytes + size > limit) {
      shards.push_back(slices.subspan(first, i - first));
      first = i;
      bytes = 0;
    }
    bytes += size;
  }
  if (first < slices.size()) shards.push_back(slices.subspan(first));
  return shards;
}

std::vector<int64_t> dims_of(const tensor::Shape& shape) {
  return {shape.dims().begin(), shape.dims().end()};
}

bool whole(const TensorSlice& slice) {
  return slice.begin.empty() && slice.first == 0 && slice.values.count() == slice.global_shape.count();
}

std::function<void(uint64_t, std::span<std::byte>)> byte_reader(const TensorSlice& slice) {
  if (!slice.read) return {};
  return [&slice](uint64_t first, std::span<std::byte> to) {
    const DType type = slice.values.dtype();
    const auto size = static_cast<int64_t>(size_of(type));
    slice.read(static_cast<int64_t>(first) / size,
               tensor::Tensor::borrow(to.data(), {static_cast<int64_t>(to.size()) / size}, type));
  };
}

// Writes all slices of one kind (model or optimizer). name(i, n) returns the name of file i of n; i counts from 1.
template <typename F>
void write_kind(const std::string& folder, std::span<const TensorSlice> slices, int64_t limit, Manifest& manifest,
                F&& name) {
  const auto shards = cut(slices, limit);
  for (size_t i = 0; i < shards.size(); ++i) {
    const std::string file = name(i + 1, shards.size());
    std::vector<TensorSource> tensors;
    for (const TensorSlice& slice : shards[i]) {
      // A whole tensor keeps its name and shape, so that any safetensors tool can read it; a partial slice is stored
      // flat.
      const bool all = whole(slice);
      const std::string key = all ? slice.name : fmt::format("{}@{}", slice.name, tensors.size());
      tensors.push_back({key, slice.values.dtype(),
                         all ? dims_of(slice.global_shape) : std::vector<int64_t>{slice.values.count()},
                         slice.values.data(), byte_reader(slice)});
      TensorRecord& record = manifest.tensors[slice.name];
      record.dtype = slice.values.dtype();
      record.shape = dims_of(slice.global_shape);
      record.slices.push_back({file, key, slice.begin, slice.extent, slice.first, slice.values.count(), {}});
    }
    const WrittenFile written = write_safetensors(folder + "/" + file, tensors);
    for (size_t k = 0; k < tensors.size(); ++k)
      for (SliceRecord& slice : manifest.tensors[shards[i][k].name].slices)
        if (slice.file == file && slice.key == tensors[k].name) slice.checksum = written.tensor_checksums[k];
    manifest.files[file] = {written.bytes, written.checksum};
  }
}

// Extra files are first written to a separate folder, because other ranks write into the checkpoint folder at the same
// time.
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
      obs::File file = open_regular_file(from);
      file.sync();
      const std::string bytes = file.read(0, file.size());
      manifest.added[name] = {bytes.size(), file_checksum(std::as_bytes(std::span(bytes)))};
    }
    if (std::rename(from.c_str(), to.c_str()) != 0)
      throw IoError(fmt::format("cannot rename {} to {}: {}", from, to, errno_text(errno)));
  }
  fs::remove(apart, error);
}

void write_manifest(const std::string& folder, const Manifest& manifest) {
  obs::write_whole_file(folder + "/" + kManifestName, to_json(manifest), true);
}

void check(const SaveOptions& options) {
  if (options.check_folder) options.check_folder();
}

std::string save_single_rank(const std::string& dir, const Snapshot& snapshot, const SaveOptions& options) {
  prepare_folder(dir);
  const std::string name = step_name(snapshot.step), path = dir + "/" + name;
  const std::string temporary = fmt::format("{}/{}{}.{}", dir, kPartialPrefix, name, getpid());
  std::error_code error;
  fs::create_directory(temporary, error);
  if (error) throw IoError(fmt::format("checkpoint folder {}: {}", temporary, error.message()));
  try {
    Manifest manifest;
    manifest.step = snapshot.step;
    manifest.state = snapshot.state;
    const auto write = [&](std::string_view kind, std::span<const TensorSlice> slices) {
      write_kind(temporary, slices, options.shard_bytes, manifest,
                 [&](size_t i, size_t n) { return fmt::format("{}-{:05}-of-{:05}.safetensors", kind, i, n); });
    };
    write("model", snapshot.model);
    write("optimizer", snapshot.optimizer);
    add_files(temporary, options, manifest);
    write_manifest(temporary, manifest);
    check(options);
    commit_folder(dir, temporary, path);
  } catch (...) {
    fs::remove_all(temporary, error);
    throw;
  }
  return path;
}

PartialManifest write_partial(const std::string& folder, const Snapshot& snapshot, const SaveOptions& options) {
  PartialManifest part{options.rank, options.world, {}};
  part.manifest.step = snapshot.step;
  part.manifest.attempt = options.token;
  part.manifest.state = snapshot.state;
  const auto write = [&](std::string_view kind, std::span<const TensorSlice> slices) {
    write_kind(folder, slices, options.shard_bytes, part.manifest, [&](size_t i, size_t) {
      return fmt::format("{}{:05}.safetensors", rank_file_prefix(kind, options.rank), i);
    });
  };
  write("model", snapshot.model);
  write("optimizer", snapshot.optimizer);
  return part;
}

// Rank 0: merges the partial manifests, renames the files and writes the manifest.
void write_merged(const std::string& folder, const std::vector<PartialManifest>& parts) {
  const MergedManifest merged = merge(parts);
  for (const auto& [from, to] : merged.renamed)
    if (std::rename((folder + "/" + from).c_str(), (folder + "/" + to).c_str()) != 0)
      throw IoError(fmt::format("cannot rename {}/{} to {}: {}", folder, from, to, errno_text(errno)));
  write_manifest(folder, merged.manifest);
}

std::string save_multi_rank(const std::string& dir, const Snapshot& snapshot, const SaveOptions& options) {
  SaveAttempt attempt(dir, snapshot.step, options);
  try {
    attempt.begin();
    PartialManifest part = write_partial(attempt.folder(), snapshot, options);
    if (options.rank != 0) {
      attempt.submit(part);
      attempt.wait_for_commit();
    } else {
      add_files(attempt.folder(), options, part.manifest);
      write_merged(attempt.folder(), attempt.collect_partials(std::move(part)));
      check(options);
      attempt.commit();
    }
  } catch (const std::exception& error) {
    check(options);
    throw IoError(attempt.abort(error.what()));
  }
  return attempt.path();
}

}  // namespace

std::string save(const std::string& dir, const Snapshot& snapshot, const SaveOptions& options) {
  check(options);
  const std::string path =
      options.world == 1 ? save_single_rank(dir, snapshot, options) : save_multi_rank(dir, snapshot, options);
  check(options);
  if (options.rank == 0) {
    remove_failed(dir);
    remove_old(dir, options.keep, path);
  }
  return path;
}

}  // namespace esp::ckpt
