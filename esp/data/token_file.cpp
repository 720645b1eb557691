#include "esp/data/token_file.h"

#include <algorithm>
#include <bit>
#include <cstring>

#include <fmt/format.h>

#include "esp/base/check.h"
#include "esp/base/error.h"
#include "esp/data/content.h"
#include "esp/data/token_record.h"

namespace esp::data {
namespace {

struct LlmcRow {
  int32_t magic, version;
  TokenType type;
};
constexpr LlmcRow kLlmc[] = {{20240520, 1, TokenType::u16}, {20240801, 7, TokenType::u32}};

// Stored in the byte order of the machines we run on; static_assert in place of swapping.
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
        fmt::format("{} has {} bytes, which is no whole number of {} tokens", name, file_bytes, name_of(type)));
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
    throw IoError(fmt::format("{} has {} bytes; the header of an llm.c shard alone has 1024", name, file.size()));
  for (const LlmcRow& row : kLlmc) {
    if (word(file, 0) != row.magic) continue;
    if (word(file, 1) != row.version)
      throw IoError(fmt::format("{} is an llm.c shard of version {}, known is {}", name, word(file, 1), row.version));
    int64_t count = word(file, 2);
    if (count < 0) throw IoError(fmt::format("{} says it holds {} tokens", name, count));
    TokenLayout layout{row.type, kLlmcHeaderBytes, static_cast<uint64_t>(count)};
    uint64_t expected = kLlmcHeaderBytes + layout.count * size_of(row.type);
    if (expected != file.size())
      throw IoError(fmt::format("{} says it holds {} tokens, which makes {} bytes, but has {}", name, count, expected,
                                file.size()));
    return layout;
  }
  throw IoError(fmt::format("{} is no llm.c shard: it begins with {}, not 20240520 or 20240801", name, word(file, 0)));
}

std::vector<std::byte> llmc_header(TokenType type, uint64_t count) {
  for (const LlmcRow& row : kLlmc) {
    if (row.type != type) continue;
    ESP_CHECK(count <= INT32_MAX, "{} tokens in an llm.c shard", count);
    const int32_t words[] = {row.magic, row.version, static_cast<int32_t>(count)};
    std::vector<std::byte> header(kLlmcHeaderBytes);
    std::memcpy(header.data(), words, sizeof words);
    return header;
  }
  throw UsageError(fmt::format("llm.c shards hold uint16 or uint32, not {}", name_of(type)));
}

TokenType raw_type(const std::string& path) {
  const std::optional<TokenRecord> record = record_of_raw(path);
  return record && record->type ? *record->type : TokenType::u16;
}

namespace {

// Ids that are wider than `type` says have upper halves near 0 at every second place, and ids of text never have.
void check_width(const std::string& path, std::span<const std::byte> bytes, TokenType type) {
  constexpr size_t kExamined = 4096, kFewest = 64;
  constexpr uint32_t kMaxUpperHalf = 3;  // of vocabularies up to 2^18
  if (type != TokenType::u16 && type != TokenType::u32) return;
  const size_t width = size_of(type), count = std::min(bytes.size() / width, kExamined) / 2 * 2;
  if (count < kFewest) return;
  uint32_t lower = 0, upper = 0;  // the largest of each
  for (size_t i = 0; i < count; ++i) {
    uint32_t id = 0;
    std::memcpy(&id, bytes.data() + width * i, width);
    uint32_t& largest = i % 2 == 0 ? lower : upper;
    largest = std::max(largest, id);
  }
  if (lower <= kMaxUpperHalf || upper > kMaxUpperHalf) return;
  const std::string fix = type == TokenType::u16
                              ? "Set data.bin_type = \"u32\" (--type uint32 of data info), or write uint16"
                              : fmt::format(
                                    "Write uint32: python3 -c \"import numpy; numpy.fromfile('{0}', "
                                    "'int64').astype('uint32').tofile('{0}.u32.bin')\"",
                                    path);
  throw IoError(fmt::format("{}: got every second id from 0 to {}, as of {} ids that are read as {}; expected {}. {}",
                            path, upper, type == TokenType::u16 ? "uint32" : "int64", name_of(type), name_of(type),
                            fix));
}

}  // namespace

TokenSource open_raw(const std::string& path, TokenType type) {
  const std::optional<TokenRecord> record = record_of_raw(path);
  if (!record && type != TokenType::u8) require_token_ids(path);
  auto file = std::make_unique<MappedFile>(path);
  if (!record) check_width(path, file->bytes(), type);
  if (record && record->tokens && record->type && file->size() != *record->tokens * size_of(*record->type))
    throw IoError(
        fmt::format("{} has {} bytes, but {} says it holds {} tokens of {}, which makes {}: it is damaged or "
                    "another file; prepare it anew",
                    path, file->size(), record->path, *record->tokens, name_of(*record->type),
                    *record->tokens * size_of(*record->type)));
  TokenLayout layout = raw_layout(file->size(), type, path);
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
