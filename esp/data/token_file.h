// Token files: raw .bin as nanoGPT writes them, llm.c shards, and Megatron-LM's .idx + .bin. The header readers are
// pure functions of bytes, for tests and fuzzing; `name` is used in messages. An inconsistent header is an IoError.
//
//   raw       tokens without a header, uint16 or uint32
//   llm.c     256 int32: magic 20240520, version 1, count, zeros; then uint16.  Magic 20240801, version 7: uint32
//   Megatron  .idx: "MMIDIDX\0\0", u64 version 1, u8 type, u64 sequences, u64 entries of the document index,
//             i32 lengths, i64 byte offsets into .bin, i64 document index (first sequence of each document, the end)
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "esp/data/source.h"

namespace esp::data {

struct TokenLayout {
  TokenType type;
  uint64_t offset_bytes, count;
};

TokenLayout raw_layout(uint64_t file_bytes, TokenType type, std::string_view name);

inline constexpr size_t kLlmcHeaderBytes = 1024;
bool looks_like_llmc(std::span<const std::byte> file);
TokenLayout read_llmc_header(std::span<const std::byte> file, std::string_view name);
// TokenType u16 or u32. The format stores the count as a signed 32-bit number.
std::vector<std::byte> llmc_header(TokenType type, uint64_t count);

// Refers to the bytes passed to the constructor, which must stay alive.
class MegatronIndex {
 public:
  // Checks that every entry lies within `bin_bytes`.
  MegatronIndex(std::span<const std::byte> idx, uint64_t bin_bytes, std::string_view name);
  TokenType type() const { return type_; }
  uint64_t num_sequences() const { return sequences_; }
  uint64_t num_documents() const { return entries_ - 1; }
  uint64_t length(uint64_t sequence) const;
  uint64_t offset_bytes(uint64_t sequence) const;
  // index of the first sequence; document_start(num_documents()) is the end
  uint64_t document_start(uint64_t document) const;

 private:
  std::span<const std::byte> bytes_;
  TokenType type_;
  uint64_t sequences_, entries_;
};
// The header of an .idx file, up to the lengths.
std::vector<std::byte> megatron_header(TokenType type, uint64_t sequences, uint64_t entries);
uint8_t megatron_code(TokenType type);

// Token type of a raw file: from NAME.json, which prepare() writes beside it, otherwise uint16.
TokenType raw_type(const std::string& path);
// Throws IoError if NAME.json records another number of tokens.
TokenSource open_raw(const std::string& path, TokenType type);
TokenSource open_llmc(const std::string& path);
TokenSource open_megatron(const std::string& path);  // path: the .bin, the .idx, or their common name without extension

}  // namespace esp::data
