#include "esp/ckpt/safetensors.h"

#include <fcntl.h>
#include <sys/mman.h>
#include <xxhash.h>

#include <algorithm>
#include <array>
#include <cstring>
#include <optional>
#include <utility>

#include <fmt/format.h>
#include <nlohmann/json.hpp>

#include "esp/base/error.h"
#include "esp/base/json.h"
#include "esp/obs/file.h"

namespace esp::ckpt {
namespace {

constexpr uint64_t kMaxHeaderBytes = 100'000'000;
constexpr uint64_t kAlignment = 64;
constexpr size_t kChunkBytes = size_t{1} << 20;
constexpr uint64_t kPassingBytes = uint64_t{16} << 20;  // of what lies beyond memory; whole elements of any type

struct TypeName {
  std::string_view name;
  DType dtype;
};
constexpr TypeName kTypes[] = {{"F64", DType::f64}, {"F32", DType::f32}, {"BF16", DType::bf16}, {"F16", DType::f16},
                               {"I64", DType::i64}, {"I32", DType::i32}, {"I16", DType::i16},   {"I8", DType::i8},
                               {"U8", DType::u8},   {"BOOL", DType::u8}};  // read only: masks that some folders carry

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

// Fills a SafetensorsHeader event by event: a tree of 10^6 tensors would take several times the time and memory.
// Fields of a tensor that the format does not have are ignored. Duplicate names of tensors are left to the caller.
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
  bool binary(binary_t&) override { return false; }  // no JSON text has one

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
  // A value of another kind than its place needs.
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
    --depth_;  // of the value itself
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
      return wrong("fewer");
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
  int depth_ = 0;  // of open objects and lists
  bool in_metadata_ = false, has_metadata_ = false;
  std::string key_;  // of the metadata
  Field field_ = kNone;
  unsigned given_ = 0;  // fields of the tensor, as bits
  std::array<uint64_t, 2> offsets_{};
  size_t num_offsets_ = 0;
};

}  // namespace

uint64_t TensorEntry::count() const {
  return (end - begin) / size_of(dtype);
}

SafetensorsHeader parse_safetensors(std::span<const std::byte> head, uint64_t file_bytes, std::string_view name) {
  uint64_t length = 0;
  if (head.size() < 8) refuse(name, fmt::format("{} bytes are no safetensors file", head.size()));
  std::memcpy(&length, head.data(), 8);
  if (length > kMaxHeaderBytes || length > file_bytes - 8 || length > head.size() - 8)
    refuse(name, fmt::format("a header of {} bytes does not fit the file of {}", length, file_bytes));
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
      refuse(name, fmt::format("tensor {} begins at {}, where {} was expected: a hole or an overlap", entry.name,
                               entry.begin, at));
    at = entry.end;
  }
  if (at != file_bytes - header.data_begin)
    refuse(name, fmt::format("tensors end at byte {} of {} data bytes", at, file_bytes - header.data_begin));
  return header;
}

SafetensorsFile::SafetensorsFile(const std::string& path) : SafetensorsFile(obs::File(path, O_RDONLY)) {}

SafetensorsFile::SafetensorsFile(const obs::File& file) : path_(file.path()) {
  size_ = file.size();
  if (size_ < 8) refuse(path_, fmt::format("{} bytes are no safetensors file", size_));
  void* data = mmap(nullptr, size_, PROT_READ, MAP_PRIVATE, file.fd(), 0);
  if (data == MAP_FAILED) file.fail("cannot be mapped");
  data_ = static_cast<const std::byte*>(data);
  try {
    header_ = parse_safetensors(whole(), size_, path_);
  } catch (...) {
    munmap(data, size_);
    throw;
  }
}

SafetensorsFile::~SafetensorsFile() {
  if (data_) munmap(const_cast<std::byte*>(data_), size_);
}

const TensorEntry* SafetensorsFile::find(std::string_view name) const {
  const auto at = header_.by_name.find(name);
  return at == header_.by_name.end() ? nullptr : &header_.tensors[at->second];
}

std::span<const std::byte> SafetensorsFile::bytes(const TensorEntry& entry) const {
  return whole().subspan(header_.data_begin + entry.begin, entry.end - entry.begin);
}

namespace {

std::string hexadecimal(XXH128_hash_t hash) {
  return fmt::format("{:016x}{:016x}", hash.high64, hash.low64);
}

struct StateDeleter {
  void operator()(XXH3_state_t* state) const { XXH3_freeState(state); }
};

uint64_t bytes_of(const TensorToWrite& tensor) {
  uint64_t bytes = size_of(tensor.dtype);
  for (int64_t dim : tensor.shape) bytes *= static_cast<uint64_t>(dim);
  return bytes;
}

}  // namespace

std::string checksum_of(std::span<const std::byte> bytes) {
  return hexadecimal(XXH3_128bits(bytes.data(), bytes.size()));
}

std::string short_checksum_of(std::span<const std::byte> bytes) {
  return fmt::format("{:016x}", XXH3_64bits(bytes.data(), bytes.size()));
}

WrittenFile write_safetensors(const std::string& path, std::span<const TensorToWrite> tensors,
                              const std::map<std::string, std::string>& metadata) {
  Json header = Json::object();
  if (!metadata.empty()) header["__metadata__"] = metadata;
  auto& rows = header.get_ref<Json::object_t&>();  // filled without a search of all names for each
  uint64_t at = 0;
  for (const TensorToWrite& tensor : tensors) {
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
  // By chunks: they are still in the cache when the second hash and the kernel read them.
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
  const auto read_and_write = [&](const TensorToWrite& tensor, uint64_t bytes) {
    passing.resize(std::max(passing.size(), static_cast<size_t>(std::min(bytes, kPassingBytes))));
    for (uint64_t first = 0; first < bytes; first += kPassingBytes) {
      const auto part = static_cast<size_t>(std::min(kPassingBytes, bytes - first));
      tensor.read(first, {passing.data(), part});
      write({reinterpret_cast<const char*>(passing.data()), part});
    }
  };
  XXH3_64bits_reset(tensor_hash.get());
  write({reinterpret_cast<const char*>(&length), 8});
  write(text);
  for (const TensorToWrite& tensor : tensors) {
    const uint64_t bytes = bytes_of(tensor);
    XXH3_64bits_reset(tensor_hash.get());
    if (tensor.read) {
      read_and_write(tensor, bytes);
    } else {
      write({static_cast<const char*>(tensor.data), bytes});
    }
    written.tensor_checksums.push_back(fmt::format("{:016x}", XXH3_64bits_digest(tensor_hash.get())));
  }
  file.sync();
  written.bytes = 8 + length + at;
  written.checksum = hexadecimal(XXH3_128bits_digest(hash.get()));
  return written;
}

}  // namespace esp::ckpt
