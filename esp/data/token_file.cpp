#include "esp/data/token_file.h"

#include <algorithm>
#include <bit>
#include <cstring>

#include <fmt/format.h>

#include "esp/base/check.h"
#include "esp/base/error.h"
#include "esp/data/content_type.h"
#include "esp/data/token_metadata.h"

namespace esp::data {
namespace {

struct LlmcRow {
  int32_t magic, version;
  TokenType type;
};
constexpr int32_t kLlmcModelMagic = 20240326;  // of a file with weights
constexpr LlmcRow kLlmc[] = {{20240520, 1, TokenType::u16}, {20240801, 7, TokenType::u32}};

// Token files are little-endian. No byte swapping: the static_assert rejects other machines.
static_assert(std::endian::native == std::endian::little, "token files are little-endian");

int32_t word(std::span<const std::byte> file, size_t index) {
  int32_t value;
  std::memcpy(&value, file.data() + 4 * index, 4);
  return value;
}

}  // namespace

TokenLayout raw_layout(uint64_t file_bytes, TokenType type, std::string_view name) {
  if (file_bytes == 0) throw IoError(fmt::format("{} is empty", name));
  if (file_bytes % size_of(type) != 0)
    throw IoError(
        fmt::format("{} has {} bytes, which is not a whole number of {} tokens", name, file_bytes, name_of(type)));
  return {type, 0, file_bytes / size_of(type)};
}

bool looks_like_llmc(std::span<const std::byte> file) {
  if (file.size() < kLlmcHeaderBytes) return false;
  for (const LlmcRow& row : kLlmc)
    if (word(file, 0) == row.magic) return true;
  return false;
}

TokenLayout read_llmc_header(std::span<const std::byte> file, std::string_view name) {
  if (file.size() < kLlmcHeaderBytes)
    throw IoError(
        fmt::format("{} has {} bytes; expected at least 1024, the header of an llm.c shard", name, file.size()));
  for (const LlmcRow& row : kLlmc) {
    if (word(file, 0) != row.magic) continue;
    if (word(file, 1) != row.version)
      throw IoError(fmt::format("{}: got llm.c shard version {}; expected {}", name, word(file, 1), row.version));
    int64_t count = word(file, 2);
    if (count < 0) throw IoError(fmt::format("{}: its header says {} tokens; expected >= 0", name, count));
    TokenLayout layout{row.type, kLlmcHeaderBytes, static_cast<uint64_t>(count)};
    uint64_t expected = kLlmcHeaderBytes + layout.count * size_of(row.type);
    if (expected != file.size())
      throw IoError(fmt::format("{}: its header says {} tokens, which take a file of {} bytes; the file has {}", name,
                                count, expected, file.size()));
    return layout;
  }
  throw IoError(
      fmt::format("{}: not an llm.c shard: it begins with {}; expected 20240520 or 20240801", name, word(file, 0)));
}

std::vector<std::byte> llmc_header(TokenType type, uint64_t count) {
  for (const LlmcRow& row : kLlmc) {
    if (row.type != type) continue;
    ESP_CHECK(count <= INT32_MAX, "got {} tokens for one llm.c shard; expected less than 2^31", count);
    const int32_t words[] = {row.magic, row.version, static_cast<int32_t>(count)};
    std::vector<std::byte> header(kLlmcHeaderBytes);
    std::memcpy(header.data(), words, sizeof words);
    return header;
  }
  throw UsageError(fmt::format("llm.c shards store uint16 or uint32; got {}", name_of(type)));
}

TokenType raw_type(const std::string& path) {
  const std::optional<TokenMetadata> record = find_raw_metadata(path);
  return record && record->type ? *record->type : TokenType::u16;
}

namespace {

// If the ids in the file are wider than `type`, every second value is the upper half of an id and therefore close to 0.
// Real token ids never look like that.
void check_width(const std::string& path, std::span<const std::byte> bytes, TokenType type) {
  constexpr size_t kExamined = 4096, kFewest = 64;
  if (type != TokenType::u8 && type != TokenType::u16 && type != TokenType::u32) return;
  // Largest upper half: 3 in vocabularies of up to 2^18 ids. As u8, only a vocabulary of up to 256 ids is recognised.
  const uint32_t max_upper_half = type == TokenType::u8 ? 0 : 3;
  const size_t width = size_of(type), count = std::min(bytes.size() / width, kExamined) / 2 * 2;
  if (count < kFewest) return;
  uint32_t lower = 0, upper = 0;  // largest lower and largest upper half
  for (size_t i = 0; i < count; ++i) {
    uint32_t id = 0;
    std::memcpy(&id, bytes.data() + width * i, width);
    uint32_t& largest = i % 2 == 0 ? lower : upper;
    largest = std::max(largest, id);
  }
  if (lower <= max_upper_half || upper > max_upper_half) return;
  const std::string fix = type == TokenType::u8 ? "Set data.bin_type = \"u16\" (--type uint16 of data info)"
                          : type == TokenType::u16
                              ? "Set data.bin_type = \"u32\" (--type uint32 of data info), or write uint16"
                              : fmt::format(
                                    "Write uint32: python3 -c \"import numpy; numpy.fromfile('{0}', "
                                    "'int64').astype('uint32').tofile('{0}.u32.bin')\"",
                                    path);
  throw IoError(fmt::format(
      "{}: every second id is at most {}, as if {} ids were read as {}; expected a file of {}. {}", path, upper,
      type == TokenType::u8    ? "uint16"
      : type == TokenType::u16 ? "uint32"
                               : "int64",
      name_of(type), name_of(type), fix));
}

}  // namespace

TokenSource open_raw(const std::string& path, TokenType type) {
  const std::optional<TokenMetadata> record = find_raw_metadata(path);
  if (!record && type != TokenType::u8) require_token_ids(path);
  auto file = std::make_unique<MappedFile>(path);
  if (!record) check_width(path, file->bytes(), type);
  if (record && record->tokens && record->type && file->size() != *record->tokens * size_of(*record->type))
    throw IoError(
        fmt::format("{} has {} bytes, but {} says {} tokens of {}, which take {} bytes: the file is damaged or "
                    "another file. Run data prepare again",
                    path, file->size(), record->path, *record->tokens, name_of(*record->type),
                    *record->tokens * size_of(*record->type)));
  TokenLayout layout = raw_layout(file->size(), type, path);
  if (file->size() >= kLlmcHeaderBytes && word(file->bytes(), 0) == kLlmcModelMagic)
    throw IoError(fmt::format("{}: got the weights of an llm.c model; expected token ids", path));
  TokenSource source;
  source.add(std::move(file), layout.type, layout.offset_bytes, layout.count);
  return source;
}

TokenSource open_llmc(const std::string& path) {
  auto file = std::make_unique<MappedFile>(path);
  TokenLayout layout = read_llmc_header(file->bytes(), path);
  TokenSource source;
  source.add(std::move(file), layout.type, layout.offset_bytes, layout.count);
  return source;
}

}  // namespace esp::data
