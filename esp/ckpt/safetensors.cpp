#include "esp/ckpt/safetensors.h"

#include <fcntl.h>
#include <xxhash.h>

#include <algorithm>
#include <array>
#include <cstring>
#include <optional>
#include <utility>

#include <fmt/format.h>
#include <nlohmann/json.hpp>

#include "esp/base/check.h"
#include "esp/base/error.h"
#include "esp/base/json.h"
#include "esp/obs/file.h"

namespace esp::ckpt {
namespace {

constexpr uint64_t kMaxHeaderBytes = 100'000'000;
constexpr uint64_t kAlignment = 64;
constexpr size_t kChunkBytes = size_t{1} << 20;
// staging buffer for offloaded values; a multiple of every element size
constexpr uint64_t kStagingBytes = uint64_t{16} << 20;

struct TypeName {
  std::string_view name;
  DType dtype;
};
constexpr TypeName kTypes[] = {{"F64", DType::f64},
                               {"F32", DType::f32},
                               {"BF16", DType::bf16},
                               {"F16", DType::f16},
                               {"I64", DType::i64},
                               {"I32", DType::i32},
                               {"I16", DType::i16},
                               {"I8", DType::i8},
                               {"U8", DType::u8},
                               // only for reading: some folders contain mask tensors of this type
                               {"BOOL", DType::u8}};

std::optional<DType> type_named(std::string_view name) {
  for (const TypeName& row : kTypes)
    if (row.name == name) return row.dtype;
  return std::nullopt;
}

std::string_view name_in_file(DType dtype) {
  for (const TypeName& row : kTypes)
    if (row.dtype == dtype) return row.name;
  return "";
}

[[noreturn]] void refuse(std::string_view file, std::string_view what) {
  throw IoError(fmt::format("{}: {}", file, what));
}

// Builds a SafetensorsHeader from SAX events, because a DOM of 10^6 tensors would take several times the time and
// memory. Unknown fields of a tensor are ignored. The caller checks for duplicate tensor names.
class HeaderReader final : public nlohmann::json_sax<Json> {
 public:
  HeaderReader(SafetensorsHeader& header, std::string_view file) : header_(header), file_(file) {}
  std::string problem;

  bool null() override { return other("null"); }
  bool boolean(bool value) override { return other(value ? "true" : "false"); }
  bool number_integer(number_integer_t value) override { return other(fmt::to_string(value)); }
  bool number_unsigned(number_unsigned_t value) override {
    if (depth_ != 3 || (field_ != kShape && field_ != kOffsets)) return other(fmt::to_string(value));
    if (field_ == kOffsets) {
      if (num_offsets_ == 2) return wrong("more than two numbers");
      offsets_[num_offsets_++] = value;
      return true;
    }
    std::vector<int64_t>& shape = header_.tensors.back().shape;
    if (shape.size() == kMaxDims) return wrong(fmt::format("more than {} dimensions", kMaxDims));
    if (value > INT64_MAX) return wrong(fmt::to_string(value));
    shape.push_back(static_cast<int64_t>(value));
    return true;
  }
  bool number_float(number_float_t, const string_t& text) override { return other(text); }
  bool string(string_t& value) override {
    if (in_metadata_ && depth_ == 2) {
      header_.metadata[key_] = std::move(value);
      return true;
    }
    if (depth_ != 2 || field_ != kType) return other(fmt::format("\"{}\"", value));
    const auto dtype = type_named(value);
    if (!dtype) return fail(fmt::format("tensor {} has the unknown dtype \"{}\"", tensor(), value));
    header_.tensors.back().dtype = *dtype;
    return true;
  }
  bool binary(binary_t&) override { return false; }  // never called: JSON text has no binary values

  bool start_object(size_t) override {
    ++depth_;
    if (depth_ == 2) return true;
    return depth_ == 1 || nested();
  }
  bool end_object() override {
    --depth_;
    if (depth_ != 1) return true;
    if (std::exchange(in_metadata_, false)) return true;
    return end_tensor();
  }
  bool start_array(size_t) override {
    ++depth_;
    if (depth_ == 3 && (field_ == kShape || field_ == kOffsets)) return true;
    return nested();
  }
  bool end_array() override {
    --depth_;
    return true;
  }
  bool key(string_t& name) override {
    if (depth_ == 1) {
      field_ = kNone;
      in_metadata_ = name == kMetadata;
      if (in_metadata_)
        return !std::exchange(has_metadata_, true) || fail(fmt::format("has the key \"{}\" twice", name));
      header_.tensors.emplace_back().name = std::move(name);
      given_ = 0;
      num_offsets_ = 0;
      return true;
    }
    if (depth_ != 2) return true;
    if (in_metadata_) {
      if (header_.metadata.contains(name)) return fail(fmt::format("has the key \"{}\" twice in {}", name, kMetadata));
      key_ = std::move(name);
      return true;
    }
    const auto at = std::find(std::begin(kFields), std::end(kFields), name);
    field_ = static_cast<Field>(at - std::begin(kFields));
    if (field_ == kIgnored) return true;
    if (given_ & (1u << field_)) return fail(fmt::format("tensor {} has the key \"{}\" twice", tensor(), name));
    given_ |= 1u << field_;
    return true;
  }
  bool parse_error(size_t at, const std::string&, const nlohmann::detail::exception& error) override {
    return fail(fmt::format("is not JSON at byte {}: {}", at, error.what()));
  }

 private:
  enum Field : uint8_t { kType, kShape, kOffsets, kIgnored, kNone };
  static constexpr std::string_view kFields[] = {"dtype", "shape", "data_offsets"};
  static constexpr std::string_view kExpected[] = {"the name of a type", "a list of at most 32 whole numbers",
                                                   "two whole numbers"};
  static constexpr std::string_view kMetadata = "__metadata__";
  static constexpr size_t kMaxDims = 32;

  const std::string& tensor() const { return header_.tensors.back().name; }
  bool fail(std::string text) {
    if (problem.empty()) problem = fmt::format("{}: {}", file_, text);
    return false;
  }
  // Reports a value of the wrong type.
  bool wrong(std::string_view got) {
    return fail(fmt::format("tensor {}: {}: got {}; expected {}", tensor(), kFields[field_], got, kExpected[field_]));
  }
  bool other(std::string_view got) {
    if (depth_ == 0) return fail(fmt::format("got {}; expected an object", got));
    if (depth_ == 1 && in_metadata_) return fail(fmt::format("{}: got {}; expected an object", kMetadata, got));
    if (in_metadata_) return fail(fmt::format("{}.{}: got {}; expected a string", kMetadata, key_, got));
    if (depth_ == 1) return fail(fmt::format("tensor {}: got {}; expected an object", tensor(), got));
    return field_ == kIgnored || wrong(got);
  }
  bool nested() {
    if (depth_ > kMaxJsonDepth) return fail(fmt::format("is nested deeper than {} levels", kMaxJsonDepth));
    --depth_;  // checks at the level of the enclosing object
    const bool fits = other("a list or an object");
    ++depth_;
    return fits;
  }
  bool end_tensor() {
    TensorEntry& entry = header_.tensors.back();
    for (size_t field = 0; field < std::size(kFields); ++field)
      if (!(given_ & (1u << field))) return fail(fmt::format("tensor {} has no {}", entry.name, kFields[field]));
    if (num_offsets_ != 2) {
      field_ = kOffsets;
      return wrong("fewer than two numbers");
    }
    uint64_t bytes = size_of(entry.dtype);
    for (const int64_t dim : entry.shape)
      if (__builtin_mul_overflow(bytes, static_cast<uint64_t>(dim), &bytes))
        return fail(fmt::format("the size of tensor {} overflows", entry.name));
    entry.begin = offsets_[0];
    entry.end = offsets_[1];
    if (entry.begin > entry.end || entry.end - entry.begin != bytes)
      return fail(fmt::format("tensor {} has data_offsets {} and {}; expected {} bytes between them", entry.name,
                              entry.begin, entry.end, bytes));
    return true;
  }

  SafetensorsHeader& header_;
  std::string_view file_;
  int depth_ = 0;  // number of objects and arrays that are open
  bool in_metadata_ = false, has_metadata_ = false;
  std::string key_;  // current key of the metadata
  Field field_ = kNone;
  unsigned given_ = 0;  // bit mask of the fields seen for this tensor
  std::array<uint64_t, 2> offsets_{};
  size_t num_offsets_ = 0;
};

}  // namespace

uint64_t TensorEntry::count() const {
  return (end - begin) / size_of(dtype);
}

SafetensorsHeader parse_safetensors(std::span<const std::byte> head, uint64_t file_bytes, std::string_view name) {
  uint64_t length = 0;
  if (head.size() < 8)
    refuse(name, fmt::format("got {} bytes; expected at least 8 bytes of a safetensors file", head.size()));
  if (obs::is_git_lfs_pointer({reinterpret_cast<const char*>(head.data()), head.size()}))
    refuse(name, "got a Git LFS pointer, not the file itself. Fetch the file: git lfs pull");
  std::memcpy(&length, head.data(), 8);
  if (length > kMaxHeaderBytes || length > file_bytes - 8 || length > head.size() - 8)
    refuse(
        name,
        fmt::format("header length: got {} bytes in a file of {} bytes; expected at most {} bytes, all inside the file",
                    length, file_bytes, kMaxHeaderBytes));
  const std::string_view text(reinterpret_cast<const char*>(head.data()) + 8, length);
  if (text.empty() || text[0] != '{') refuse(name, "the header does not begin with {");
  SafetensorsHeader header;
  header.data_begin = 8 + length;
  HeaderReader reader(header, name);
  if (!Json::sax_parse(text, &reader)) throw IoError(reader.problem);
  const auto earlier = [](const TensorEntry& a, const TensorEntry& b) {
    return a.begin != b.begin ? a.begin < b.begin : a.end < b.end;
  };
  if (!std::is_sorted(header.tensors.begin(), header.tensors.end(), earlier))
    std::stable_sort(header.tensors.begin(), header.tensors.end(), earlier);
  header.by_name.reserve(header.tensors.size());
  for (size_t i = 0; i < header.tensors.size(); ++i)
    if (!header.by_name.emplace(header.tensors[i].name, i).second)
      refuse(name, fmt::format("has the tensor {} twice", header.tensors[i].name));
  uint64_t at = 0;
  for (const TensorEntry& entry : header.tensors) {
    if (entry.begin != at)
      refuse(name, fmt::format("tensor {} begins at byte {}; expected {} (without gap or overlap)", entry.name,
                               entry.begin, at));
    at = entry.end;
  }
  if (at != file_bytes - header.data_begin)
    refuse(name, fmt::format("got tensors up to byte {} of the data; expected up to its end, byte {}", at,
                             file_bytes - header.data_begin));
  return header;
}

SafetensorsFile::SafetensorsFile(const std::string& path) : SafetensorsFile(obs::open_input_file(path)) {}

SafetensorsFile::SafetensorsFile(obs::File file) : file_(std::move(file)), size_(file_.size()) {
  uint64_t length = 0;
  if (size_ >= 8) read_at(0, std::as_writable_bytes(std::span(&length, 1)));
  // If the length is too large, parse_safetensors reports it: `head` then ends before the header does.
  const std::string head = file_.read(0, std::min({size_, kMaxHeaderBytes, length}) + 8);
  header_ = parse_safetensors(std::as_bytes(std::span(head)), size_, path());
}

const TensorEntry* SafetensorsFile::find(std::string_view name) const {
  const auto at = header_.by_name.find(name);
  return at == header_.by_name.end() ? nullptr : &header_.tensors[at->second];
}

void SafetensorsFile::read_at(uint64_t offset, std::span<std::byte> to) const {
  const size_t got = file_.read(offset, to);
  if (got < to.size())
    throw obs::FileChanged(
        fmt::format("{}: got {} bytes at byte {}; expected {}. The file was truncated while it was read: restore it",
                    path(), got, offset, to.size()));
}

void SafetensorsFile::read(const TensorEntry& entry, uint64_t first, std::span<std::byte> to) const {
  ESP_CHECK(first <= entry.end - entry.begin && to.size() <= entry.end - entry.begin - first,
            "{}: read of {} bytes from byte {} of a tensor of {} bytes", path(), to.size(), first,
            entry.end - entry.begin);
  read_at(header_.data_begin + entry.begin + first, to);
}

std::vector<std::byte> SafetensorsFile::bytes(const TensorEntry& entry) const {
  std::vector<std::byte> bytes(entry.end - entry.begin);
  read(entry, 0, bytes);
  return bytes;
}

// Calls f(chunk) for the bytes from `begin` to `end` of the file.
template <typename F>
void SafetensorsFile::for_each_chunk(uint64_t begin, uint64_t end, F&& f) const {
  std::vector<std::byte> buffer(std::min<uint64_t>(kChunkBytes, end - begin));
  for (uint64_t at = begin; at < end; at += buffer.size()) {
    const std::span chunk(buffer.data(), std::min<uint64_t>(buffer.size(), end - at));
    read_at(at, chunk);
    f(chunk);
  }
}

namespace {

std::string hexadecimal(XXH128_hash_t hash) {
  return fmt::format("{:016x}{:016x}", hash.high64, hash.low64);
}
std::string hexadecimal(XXH64_hash_t hash) {
  return fmt::format("{:016x}", hash);
}

struct StateDeleter {
  void operator()(XXH3_state_t* state) const { XXH3_freeState(state); }
};

uint64_t bytes_of(const TensorSource& tensor) {
  uint64_t bytes = size_of(tensor.dtype);
  for (int64_t dim : tensor.shape) bytes *= static_cast<uint64_t>(dim);
  return bytes;
}

}  // namespace

std::string file_checksum(std::span<const std::byte> bytes) {
  return hexadecimal(XXH3_128bits(bytes.data(), bytes.size()));
}

std::string SafetensorsFile::checksum() const {
  const std::unique_ptr<XXH3_state_t, StateDeleter> hash(XXH3_createState());
  XXH3_128bits_reset(hash.get());
  for_each_chunk(
      0, size_, [&](std::span<const std::byte> chunk) { XXH3_128bits_update(hash.get(), chunk.data(), chunk.size()); });
  return hexadecimal(XXH3_128bits_digest(hash.get()));
}

std::string SafetensorsFile::checksum(const TensorEntry& entry) const {
  const std::unique_ptr<XXH3_state_t, StateDeleter> hash(XXH3_createState());
  XXH3_64bits_reset(hash.get());
  for_each_chunk(header_.data_begin + entry.begin, header_.data_begin + entry.end,
                 [&](std::span<const std::byte> chunk) { XXH3_64bits_update(hash.get(), chunk.data(), chunk.size()); });
  return hexadecimal(XXH3_64bits_digest(hash.get()));
}

WrittenFile write_safetensors(const std::string& path, std::span<const TensorSource> tensors,
                              const std::map<std::string, std::string>& metadata) {
  Json header = Json::object();
  if (!metadata.empty()) header["__metadata__"] = metadata;
  // Rows are inserted directly, because json["name"] searches all names linearly.
  auto& rows = header.get_ref<Json::object_t&>();
  uint64_t at = 0;
  for (const TensorSource& tensor : tensors) {
    const uint64_t bytes = bytes_of(tensor);
    rows.emplace_back(
        tensor.name,
        Json{{"dtype", name_in_file(tensor.dtype)}, {"shape", tensor.shape}, {"data_offsets", {at, at + bytes}}});
    at += bytes;
  }
  std::string text = header.dump();
  text.resize((8 + text.size() + kAlignment - 1) / kAlignment * kAlignment - 8, ' ');
  const uint64_t length = text.size();

  WrittenFile written;
  obs::File file(path, O_WRONLY | O_CREAT | O_EXCL);
  const std::unique_ptr<XXH3_state_t, StateDeleter> hash(XXH3_createState());
  XXH3_128bits_reset(hash.get());
  const std::unique_ptr<XXH3_state_t, StateDeleter> tensor_hash(XXH3_createState());
  // Writes in chunks: each chunk is still in the CPU cache when the second hash and the write system call read it.
  const auto write = [&](std::string_view bytes) {
    while (!bytes.empty()) {
      const std::string_view chunk = bytes.substr(0, kChunkBytes);
      XXH3_128bits_update(hash.get(), chunk.data(), chunk.size());
      XXH3_64bits_update(tensor_hash.get(), chunk.data(), chunk.size());
      file.write_all(chunk);
      bytes.remove_prefix(chunk.size());
    }
  };
  std::vector<std::byte> passing;
  const auto read_and_write = [&](const TensorSource& tensor, uint64_t bytes) {
    passing.resize(std::max(passing.size(), static_cast<size_t>(std::min(bytes, kStagingBytes))));
    for (uint64_t first = 0; first < bytes; first += kStagingBytes) {
      const auto part = static_cast<size_t>(std::min(kStagingBytes, bytes - first));
      tensor.read(first, {passing.data(), part});
      write({reinterpret_cast<const char*>(passing.data()), part});
    }
  };
  XXH3_64bits_reset(tensor_hash.get());
  write({reinterpret_cast<const char*>(&length), 8});
  write(text);
  for (const TensorSource& tensor : tensors) {
    const uint64_t bytes = bytes_of(tensor);
    XXH3_64bits_reset(tensor_hash.get());
    if (tensor.read) {
      read_and_write(tensor, bytes);
    } else {
      write({static_cast<const char*>(tensor.data), bytes});
    }
    written.tensor_checksums.push_back(hexadecimal(XXH3_64bits_digest(tensor_hash.get())));
  }
  file.sync();
  written.bytes = 8 + length + at;
  written.checksum = hexadecimal(XXH3_128bits_digest(hash.get()));
  return written;
}

}  // namespace esp::ckpt
