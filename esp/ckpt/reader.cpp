// Reading: any box or flat run of a tensor, gathered from the pieces that hold it.
#include <algorithm>

#include <fmt/format.h>

#include "esp/base/error.h"
#include "esp/base/table.h"
#include "esp/ckpt/checkpoint.h"
#include "esp/ckpt/manifest.h"
#include "esp/ckpt/own_file.h"
#include "esp/ckpt/safetensors.h"
#include "esp/device/gpu.h"
#include "esp/kernel/elementwise.h"
#include "esp/obs/file.h"

namespace esp::ckpt {
namespace {

constexpr size_t kMostNamed = 3;  // damaged tensors in one message

// A flat run of a box, walked as runs that are contiguous in the global tensor too.
struct Box {
  std::vector<int64_t> shape, begin, extent;  // of the tensor, and of the box in it
  int64_t first = 0, count = 0;

  int64_t row() const { return extent.empty() ? 1 : extent.back(); }
  // Flat position in the tensor of element `at` of the box.
  int64_t global(int64_t at) const {
    int64_t position = 0, stride = 1;
    for (size_t d = shape.size(); d-- > 0;) {
      position += (begin[d] + at % extent[d]) * stride;
      at /= extent[d];
      stride *= shape[d];
    }
    return position;
  }
  // f(global, local, count) for each run; local counts from the first element of the range.
  template <typename F>
  void for_each_run(F&& f) const {
    for (int64_t at = first; at < first + count;) {
      const int64_t length = std::min(first + count, at / row() * row() + row()) - at;
      f(global(at), at - first, length);
      at += length;
    }
  }
};

Box box_of(const std::vector<int64_t>& shape, const std::vector<int64_t>& begin, const std::vector<int64_t>& extent,
           int64_t first, int64_t count) {
  Box box{shape, begin, extent, first, count};
  if (begin.empty()) {
    // The whole tensor is one row: its runs are as long as can be.
    int64_t all = 1;
    for (int64_t dim : shape) all *= dim;
    box.shape = box.extent = {all};
    box.begin = {0};
  }
  return box;
}

struct Run {
  int64_t global, local, count;
  size_t piece;
};

class ReadCheckpoint final : public Checkpoint {
 public:
  explicit ReadCheckpoint(const std::string& path)
      : path_(path),
        manifest_(
            parse_manifest(read_own_file(path + "/" + kManifestName, kMaxJsonBytes), path + "/" + kManifestName)) {
    for (const auto& [name, record] : manifest_.files) {
      auto file = open_tensors(path + "/" + name, record);
      if (file->file_bytes() != record.bytes || checksum_of(file->whole()) != record.checksum)
        throw IoError(fmt::format("{}: damaged in {}: the manifest tells of {} bytes with checksum {}", file->path(),
                                  damaged_in(*file, name), record.bytes, record.checksum));
      files_[name] = std::move(file);
    }
    for (const auto& [name, record] : manifest_.added) check_own_file(path + "/" + name, record);
  }

  int64_t step() const override { return manifest_.step; }
  const Json& state() const override { return manifest_.state; }
  std::vector<std::string> names() const override {
    std::vector<std::string> names;
    for (const auto& [name, record] : manifest_.tensors) names.push_back(name);
    return names;
  }
  bool has(std::string_view name) const override { return manifest_.tensors.contains(name); }
  DType dtype_of(std::string_view name) const override { return find(name).dtype; }
  tensor::Shape shape_of(std::string_view name) const override {
    return tensor::Shape(std::span<const int64_t>(find(name).shape));
  }

  void read(const Piece& wanted) const override {
    const TensorRecord& tensor = find(wanted.name);
    if (!std::ranges::equal(tensor.shape, wanted.global_shape.dims()))
      throw IoError(fmt::format("{}: {} is [{}] there and {} here: another model's checkpoint", path_, wanted.name,
                                fmt::join(tensor.shape, ", "), wanted.global_shape.text()));
    const std::vector<Run> stored = runs_of(tensor);
    const Box box = box_of(tensor.shape, wanted.begin, wanted.extent, wanted.first, wanted.values.count());
    box.for_each_run([&](int64_t global, int64_t local, int64_t count) {
      while (count > 0) {
        const int64_t done = copy_some(wanted, tensor, stored, global, local, count);
        global += done;
        local += done;
        count -= done;
      }
    });
  }

 private:
  // A header that makes no sense is damage like any other.
  static std::unique_ptr<SafetensorsFile> open_tensors(const std::string& path, const FileRecord& record) {
    const obs::File file = open_own_file(path);
    if (file.size() != record.bytes)
      throw IoError(fmt::format("{}: damaged: {} bytes, the manifest tells of {}", path, file.size(), record.bytes));
    try {
      return std::make_unique<SafetensorsFile>(file);
    } catch (const IoError& error) {
      throw IoError(fmt::format("{}: damaged in its header: {}", path, error.what()));
    }
  }

  // Which tensors of a file have other bytes than were written.
  std::string damaged_in(const SafetensorsFile& file, const std::string& name) const {
    std::vector<std::string> found;
    for (const auto& [tensor, record] : manifest_.tensors)
      for (const PieceRecord& piece : record.pieces) {
        if (piece.file != name || piece.checksum.empty()) continue;
        const TensorEntry* entry = file.find(piece.key);
        if (entry && short_checksum_of(file.bytes(*entry)) != piece.checksum) found.push_back(tensor);
      }
    if (found.size() > kMostNamed) {
      const size_t more = found.size() - kMostNamed;
      found.resize(kMostNamed);
      found.push_back(fmt::format("{} more", more));
    }
    return found.empty() ? "its header" : fmt::format("{}", fmt::join(found, ", "));
  }

  const TensorRecord& find(std::string_view name) const {
    const auto at = manifest_.tensors.find(name);
    if (at != manifest_.tensors.end()) return at->second;
    throw IoError(fmt::format("{}: no tensor {}; it holds {} others: another model's checkpoint", path_, name,
                              manifest_.tensors.size()));
  }

  static std::vector<Run> runs_of(const TensorRecord& tensor) {
    std::vector<Run> runs;
    for (size_t i = 0; i < tensor.pieces.size(); ++i) {
      const PieceRecord& p = tensor.pieces[i];
      box_of(tensor.shape, p.begin, p.extent, p.first, p.count)
          .for_each_run([&](int64_t global, int64_t local, int64_t count) {
            runs.push_back({global, local, count, i});
          });
    }
    std::sort(runs.begin(), runs.end(), [](const Run& a, const Run& b) { return a.global < b.global; });
    return runs;
  }

  // From the stored run that holds element `global`, as much as both have.
  int64_t copy_some(const Piece& wanted, const TensorRecord& tensor, const std::vector<Run>& stored, int64_t global,
                    int64_t local, int64_t count) const {
    auto run =
        std::upper_bound(stored.begin(), stored.end(), global, [](int64_t at, const Run& r) { return at < r.global; });
    if (run == stored.begin() || global >= std::prev(run)->global + std::prev(run)->count)
      throw IoError(fmt::format("{}: element {} of {} lies in no file", path_, global, wanted.name));
    --run;
    const PieceRecord& piece = tensor.pieces[run->piece];
    const SafetensorsFile& file = *files_.at(piece.file);
    const TensorEntry* entry = file.find(piece.key);
    if (!entry || entry->dtype != tensor.dtype || static_cast<int64_t>(entry->count()) != piece.count)
      throw IoError(fmt::format("{}: {} is not what the manifest tells of", file.path(), piece.key));
    const int64_t skip = global - run->global, done = std::min(count, run->count - skip);
    const std::byte* from = file.bytes(*entry).data() + static_cast<size_t>(run->local + skip) * size_of(tensor.dtype);
    std::byte* to = wanted.values.as<std::byte>() + static_cast<size_t>(local) * size_of(wanted.values.dtype());
    if (device::on_host(to)) {
      kernel::cast(to, wanted.values.dtype(), from, tensor.dtype, done, {});
    } else {
      std::vector<std::byte> here(static_cast<size_t>(done) * size_of(wanted.values.dtype()));
      kernel::cast(here.data(), wanted.values.dtype(), from, tensor.dtype, done, {});
      device::transfer(to, here.data(), here.size());
    }
    return done;
  }

  std::string path_;
  Manifest manifest_;
  std::map<std::string, std::unique_ptr<SafetensorsFile>> files_;
};

}  // namespace

std::unique_ptr<Checkpoint> open_checkpoint(const std::string& path) {
  return std::make_unique<ReadCheckpoint>(path);
}

}  // namespace esp::ckpt
