// Reads checkpoints. A read can request any box or contiguous range of a tensor. The reader gathers its elements from
// the stored slices.
#include <algorithm>

#include <fmt/format.h>

#include "esp/base/error.h"
#include "esp/base/table.h"
#include "esp/ckpt/checkpoint.h"
#include "esp/ckpt/manifest.h"
#include "esp/ckpt/regular_file.h"
#include "esp/ckpt/safetensors.h"
#include "esp/device/gpu.h"
#include "esp/kernel/elementwise.h"
#include "esp/obs/file.h"

namespace esp::ckpt {
namespace {

constexpr size_t kMaxNamed = 3;                      // maximum number of damaged tensors named in a message
constexpr int64_t kStagedValues = int64_t{1} << 20;  // values that are cast or sent to a device at once

// A contiguous range of the elements of a box, in the box's row-major order. for_each_range splits it into ranges that
// are also contiguous in the global tensor.
struct Box {
  std::vector<int64_t> shape, begin, extent;  // shape of the tensor; begin and extent of the box
  int64_t first = 0, count = 0;

  int64_t row() const { return extent.empty() ? 1 : extent.back(); }
  // Row-major position, in the global tensor, of element number `at` of the box.
  int64_t global(int64_t at) const {
    int64_t position = 0, stride = 1;
    for (size_t d = shape.size(); d-- > 0;) {
      position += (begin[d] + at % extent[d]) * stride;
      at /= extent[d];
      stride *= shape[d];
    }
    return position;
  }
  // Calls f(global, local, count) for each such range. `global` is the range's position in the global tensor; `local`
  // is its position counted from element `first` of the box.
  template <typename F>
  void for_each_range(F&& f) const {
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
    // A whole tensor is treated as a single row, so that the contiguous ranges are as long as possible.
    int64_t all = 1;
    for (int64_t dim : shape) all *= dim;
    box.shape = box.extent = {all};
    box.begin = {0};
  }
  return box;
}

struct StoredElements {
  int64_t global, local, count;
  size_t slice;
};

class ReadCheckpoint final : public Checkpoint {
 public:
  explicit ReadCheckpoint(const std::string& path)
      : path_(path),
        manifest_(
            parse_manifest(read_regular_file(path + "/" + kManifestName, kMaxJsonBytes), path + "/" + kManifestName)) {
    for (const auto& [name, record] : manifest_.files) {
      auto file = open_tensors(path + "/" + name, record);
      if (file->file_bytes() != record.bytes || file->checksum() != record.checksum)
        throw IoError(fmt::format("{}: damaged in {}: the manifest lists {} bytes with checksum {}", file->path(),
                                  damaged_tensors(*file, name), record.bytes, record.checksum));
      files_[name] = std::move(file);
    }
    for (const auto& [name, record] : manifest_.added) verify_file(path + "/" + name, record);
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

  void read(const TensorSlice& wanted) const override {
    const TensorRecord& tensor = find(wanted.name);
    if (!std::ranges::equal(tensor.shape, wanted.global_shape.dims()))
      throw IoError(fmt::format("{}: {} has shape [{}]; this model needs {}. The checkpoint belongs to another model",
                                path_, wanted.name, fmt::join(tensor.shape, ", "), wanted.global_shape.text()));
    const std::vector<StoredElements> stored = stored_ranges(tensor);
    const Box box = box_of(tensor.shape, wanted.begin, wanted.extent, wanted.first, wanted.values.count());
    box.for_each_range([&](int64_t global, int64_t local, int64_t count) {
      while (count > 0) {
        const int64_t done = copy_overlap(wanted, tensor, stored, global, local, count);
        global += done;
        local += done;
        count -= done;
      }
    });
  }

 private:
  // Opens a tensor file. An invalid header is reported as damage of the checkpoint.
  static std::unique_ptr<SafetensorsFile> open_tensors(const std::string& path, const FileRecord& record) {
    obs::File file = open_regular_file(path);
    if (file.size() != record.bytes)
      throw IoError(fmt::format("{}: damaged: got {} bytes; the manifest lists {}", path, file.size(), record.bytes));
    try {
      return std::make_unique<SafetensorsFile>(std::move(file));
    } catch (const IoError& error) {
      throw IoError(fmt::format("{}: damaged in its header: {}", path, error.what()));
    }
  }

  // The names of the damaged tensors: those whose bytes do not match their checksum.
  std::string damaged_tensors(const SafetensorsFile& file, const std::string& name) const {
    std::vector<std::string> found;
    for (const auto& [tensor, record] : manifest_.tensors)
      for (const SliceRecord& slice : record.slices) {
        if (slice.file != name || slice.checksum.empty()) continue;
        const TensorEntry* entry = file.find(slice.key);
        if (entry && file.checksum(*entry) != slice.checksum) found.push_back(tensor);
      }
    if (found.size() > kMaxNamed) {
      const size_t more = found.size() - kMaxNamed;
      found.resize(kMaxNamed);
      found.push_back(fmt::format("{} more", more));
    }
    return found.empty() ? "its header" : fmt::format("{}", fmt::join(found, ", "));
  }

  const TensorRecord& find(std::string_view name) const {
    const auto at = manifest_.tensors.find(name);
    if (at != manifest_.tensors.end()) return at->second;
    throw IoError(fmt::format("{}: no tensor {} among {} tensors. The checkpoint belongs to another model", path_, name,
                              manifest_.tensors.size()));
  }

  static std::vector<StoredElements> stored_ranges(const TensorRecord& tensor) {
    std::vector<StoredElements> ranges;
    for (size_t i = 0; i < tensor.slices.size(); ++i) {
      const SliceRecord& p = tensor.slices[i];
      box_of(tensor.shape, p.begin, p.extent, p.first, p.count)
          .for_each_range([&](int64_t global, int64_t local, int64_t count) {
            ranges.push_back({global, local, count, i});
          });
    }
    std::sort(ranges.begin(), ranges.end(),
              [](const StoredElements& a, const StoredElements& b) { return a.global < b.global; });
    return ranges;
  }

  // Finds the stored range that contains element `global` and copies those of its elements that are requested. Returns
  // the number of elements copied.
  int64_t copy_overlap(const TensorSlice& wanted, const TensorRecord& tensor, const std::vector<StoredElements>& stored,
                       int64_t global, int64_t local, int64_t count) const {
    auto run = std::upper_bound(stored.begin(), stored.end(), global,
                                [](int64_t at, const StoredElements& r) { return at < r.global; });
    if (run == stored.begin() || global >= std::prev(run)->global + std::prev(run)->count)
      throw IoError(fmt::format("{}: no file contains element {} of tensor {}", path_, global, wanted.name));
    --run;
    const SliceRecord& slice = tensor.slices[run->slice];
    const SafetensorsFile& file = *files_.at(slice.file);
    const TensorEntry* entry = file.find(slice.key);
    if (!entry || entry->dtype != tensor.dtype || static_cast<int64_t>(entry->count()) != slice.count)
      throw IoError(fmt::format("{}: tensor {}: its dtype or size differs from the manifest", file.path(), slice.key));
    const int64_t skip = global - run->global, done = std::min(count, run->count - skip);
    copy_values(file, *entry, run->local + skip, wanted.values, local, done);
    return done;
  }

  // Reads `count` stored values from element `first` of an entry on, and writes them to `values` from element `at` on.
  static void copy_values(const SafetensorsFile& file, const TensorEntry& entry, int64_t first,
                          const tensor::Tensor& values, int64_t at, int64_t count) {
    const DType dtype = values.dtype();
    const auto size = static_cast<int64_t>(size_of(dtype)), stored_size = static_cast<int64_t>(size_of(entry.dtype));
    const bool in_host_memory = device::is_host_accessible(values.data());
    std::vector<std::byte> stored, cast;
    for (int64_t done = 0; done < count;) {
      std::byte* const to = values.as<std::byte>() + (at + done) * size;
      const bool directly = in_host_memory && dtype == entry.dtype;
      const int64_t length = directly ? count : std::min(count - done, kStagedValues);
      const auto from = static_cast<uint64_t>((first + done) * stored_size);
      if (directly) {
        file.read(entry, from, {to, static_cast<size_t>(length * size)});
      } else {
        stored.resize(static_cast<size_t>(length * stored_size));
        file.read(entry, from, stored);
        if (!in_host_memory) cast.resize(static_cast<size_t>(length * size));
        kernel::cast(in_host_memory ? to : cast.data(), dtype, stored.data(), entry.dtype, length, {});
        if (!in_host_memory) device::transfer(to, cast.data(), cast.size());
      }
      done += length;
    }
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
