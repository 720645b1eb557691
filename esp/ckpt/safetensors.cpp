#include "esp/ckpt/safetensors.h"

#include <fcntl.h>
#include <sys/mman.h>
#include <xxhash.h>

#include <algorithm>
#include <cstring>
#include <optional>

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

// Whole numbers only; a negative, fractional or huge one is refused.
uint64_t whole_number(const Json& value, std::string_view file, std::string_view what) {
  if (!value.is_number_unsigned()) refuse(file, fmt::format("{} is no whole number", what));
  return value.get<uint64_t>();
}

TensorEntry entry_of(const std::string& name, const Json& json, std::string_view file) {
  const auto field = [&](const char* key) -> const Json& {
    if (!json.is_object() || !json.contains(key)) refuse(file, fmt::format("tensor {} has no {}", name, key));
    return json[key];
  };
  TensorEntry entry;
  entry.name = name;
  const Json& type = field("dtype");
  const auto dtype = type.is_string() ? type_named(type.get<std::string>()) : std::nullopt;
  if (!dtype) refuse(file, fmt::format("tensor {} has the unknown dtype {}", name, type.dump()));
  entry.dtype = *dtype;
  const Json& shape = field("shape");
  const Json& offsets = field("data_offsets");
  if (!shape.is_array() || shape.size() > 32)
    refuse(file, fmt::format("tensor {} has no list of at most 32 as shape", name));
  if (!offsets.is_array() || offsets.size() != 2) refuse(file, fmt::format("tensor {} has no two data_offsets", name));
  uint64_t bytes = size_of(entry.dtype);
  for (const Json& dim : shape) {
    const uint64_t n = whole_number(dim, file, fmt::format("a dimension of {}", name));
    if (n > INT64_MAX || __builtin_mul_overflow(bytes, n, &bytes))
      refuse(file, fmt::format("the size of tensor {} overflows", name));
    entry.shape.push_back(static_cast<int64_t>(n));
  }
  entry.begin = whole_number(offsets[0], file, "an offset");
  entry.end = whole_number(offsets[1], file, "an offset");
  if (entry.begin > entry.end || entry.end - entry.begin != bytes)
    refuse(file,
           fmt::format("tensor {} wants {} bytes, its offsets are {} and {}", name, bytes, entry.begin, entry.end));
  return entry;
}

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
  const Json json = parse_json(text, name, kMaxHeaderBytes);
  SafetensorsHeader header;
  header.data_begin = 8 + length;
  for (const auto& [key, value] : json.items()) {
    if (key != "__metadata__") {
      header.tensors.push_back(entry_of(key, value, name));
      continue;
    }
    if (!value.is_object()) refuse(name, "__metadata__ is no object");
    for (const auto& [k, v] : value.items()) {
      if (!v.is_string()) refuse(name, fmt::format("__metadata__.{} is no string", k));
      header.metadata[k] = v.get<std::string>();
    }
  }
  std::stable_sort(header.tensors.begin(), header.tensors.end(), [](const TensorEntry& a, const TensorEntry& b) {
    return a.begin != b.begin ? a.begin < b.begin : a.end < b.end;
  });
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
  for (size_t i = 0; i < header_.tensors.size(); ++i) by_name_[header_.tensors[i].name] = i;
}

SafetensorsFile::~SafetensorsFile() {
  if (data_) munmap(const_cast<std::byte*>(data_), size_);
}

const TensorEntry* SafetensorsFile::find(std::string_view name) const {
  const auto at = by_name_.find(name);
  return at == by_name_.end() ? nullptr : &header_.tensors[at->second];
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
  uint64_t at = 0;
  for (const TensorToWrite& tensor : tensors) {
    uint64_t bytes = size_of(tensor.dtype);
    for (int64_t dim : tensor.shape) bytes *= static_cast<uint64_t>(dim);
    header[tensor.name] = {
        {"dtype", name_in_file(tensor.dtype)}, {"shape", tensor.shape}, {"data_offsets", {at, at + bytes}}};
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
    const Json& offsets = header[tensor.name]["data_offsets"];
    const uint64_t bytes = offsets[1].get<uint64_t>() - offsets[0].get<uint64_t>();
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
