#include <algorithm>
#include <cstring>

#include <fmt/format.h>

#include "esp/base/check.h"
#include "esp/base/error.h"
#include "esp/data/token_file.h"
#include "esp/obs/file.h"

namespace esp::data {
namespace {

constexpr std::string_view kMagic{"MMIDIDX\0\0", 9};
constexpr size_t kHeaderBytes = 9 + 8 + 1 + 8 + 8;

struct CodeRow {
  uint8_t code;
  TokenType type;
};
// Type codes 6 and 7 are floating-point types, which token files do not use.
constexpr CodeRow kCodes[] = {{1, TokenType::u8},  {2, TokenType::i8},  {3, TokenType::i16},
                              {4, TokenType::i32}, {5, TokenType::i64}, {8, TokenType::u16}};

template <typename T>
T load(std::span<const std::byte> bytes, uint64_t at) {
  T value;
  std::memcpy(&value, bytes.data() + at, sizeof value);
  return value;
}

TokenType type_of(uint8_t code, std::string_view name) {
  for (const CodeRow& row : kCodes)
    if (row.code == code) return row.type;
  throw IoError(fmt::format("{}: got the token type code {}; expected an integer type", name, code));
}

std::string without_extension(const std::string& path) {
  return path.ends_with(".idx") || path.ends_with(".bin") ? path.substr(0, path.size() - 4) : path;
}

}  // namespace

MegatronIndex::MegatronIndex(std::span<const std::byte> idx, uint64_t bin_bytes, std::string_view name) : bytes_(idx) {
  const size_t shared = std::min(idx.size(), kMagic.size());
  if (shared > 0 && idx.size() < kHeaderBytes && std::memcmp(idx.data(), kMagic.data(), shared) == 0)
    throw IoError(fmt::format(
        "{}: got {} bytes; expected at least {}, the header of a Megatron index. The file is truncated: copy it again",
        name, idx.size(), kHeaderBytes));
  if (idx.size() < kHeaderBytes || std::memcmp(idx.data(), kMagic.data(), kMagic.size()) != 0)
    throw IoError(fmt::format("{}: not a Megatron index: it does not begin with MMIDIDX", name));
  uint64_t version = load<uint64_t>(idx, 9);
  if (version != 1) throw IoError(fmt::format("{}: got Megatron index version {}; expected 1", name, version));
  type_ = type_of(load<uint8_t>(idx, 17), name);
  sequences_ = load<uint64_t>(idx, 18);
  entries_ = load<uint64_t>(idx, 26);
  // Counts are compared by division first, so that a forged count cannot overflow to a small size.
  const uint64_t body = idx.size() - kHeaderBytes;
  if (sequences_ > body / 12 || entries_ > body / 8 || entries_ == 0 || entries_ > sequences_ + 1)
    throw IoError(fmt::format("{} has {} bytes, too few for {} sequences and {} document entries", name, idx.size(),
                              sequences_, entries_));
  uint64_t expected = sequences_ * 12 + entries_ * 8;
  // An index of multimodal data has one more byte per sequence, which is not used here.
  if (body != expected && body != expected + sequences_)
    throw IoError(fmt::format("{} has {} bytes after its header; {} sequences and {} document entries take {}", name,
                              body, sequences_, entries_, expected));
  uint64_t end = 0;  // of the last sequence in the .bin
  for (uint64_t i = 0; i < sequences_; ++i) {
    int64_t tokens = load<int32_t>(idx, kHeaderBytes + 4 * i),
            offset = load<int64_t>(idx, kHeaderBytes + 4 * sequences_ + 8 * i);
    if (tokens < 0 || offset < 0 || static_cast<uint64_t>(offset) > bin_bytes ||
        static_cast<uint64_t>(tokens) > (bin_bytes - static_cast<uint64_t>(offset)) / size_of(type_))
      throw IoError(fmt::format("{}: sequence {} has {} tokens of type {} at byte {}, outside the .bin of {} bytes",
                                name, i, tokens, name_of(type_), offset, bin_bytes));
    end = std::max(end, static_cast<uint64_t>(offset) + static_cast<uint64_t>(tokens) * size_of(type_));
  }
  if (end != bin_bytes)
    throw IoError(
        fmt::format("{}: its sequences end at byte {} of the .bin; the .bin has {} bytes. The two files do not belong "
                    "together: copy or write the pair again",
                    name, end, bin_bytes));
  for (uint64_t i = 0; i < entries_; ++i) {
    uint64_t start = document_start(i), least = i == 0 ? 0 : document_start(i - 1);
    bool right = i == 0 ? start == 0 : i + 1 == entries_ ? start == sequences_ : start >= least && start <= sequences_;
    if (!right || start < least)
      throw IoError(
          fmt::format("{}: document entry {} of {} is sequence {}; expected entries that ascend from 0 to {}, the "
                      "number of sequences",
                      name, i, entries_, start, sequences_));
  }
  if (entries_ == 1 && sequences_ > 0)
    throw IoError(fmt::format("{} has {} sequences but no document", name, sequences_));
}

uint64_t MegatronIndex::length(uint64_t sequence) const {
  return static_cast<uint64_t>(load<int32_t>(bytes_, kHeaderBytes + 4 * sequence));
}

uint64_t MegatronIndex::offset_bytes(uint64_t sequence) const {
  return load<uint64_t>(bytes_, kHeaderBytes + 4 * sequences_ + 8 * sequence);
}

uint64_t MegatronIndex::document_start(uint64_t document) const {
  return load<uint64_t>(bytes_, kHeaderBytes + 12 * sequences_ + 8 * document);
}

uint8_t megatron_code(TokenType type) {
  for (const CodeRow& row : kCodes)
    if (row.type == type) return row.code;
  throw UsageError(fmt::format("Megatron files cannot store token type {}; use uint16 or int32", name_of(type)));
}

std::vector<std::byte> megatron_header(TokenType type, uint64_t sequences, uint64_t entries) {
  std::vector<std::byte> header(kHeaderBytes);
  const uint64_t version = 1;
  const uint8_t code = megatron_code(type);
  std::memcpy(header.data(), kMagic.data(), kMagic.size());
  std::memcpy(header.data() + 9, &version, 8);
  std::memcpy(header.data() + 17, &code, 1);
  std::memcpy(header.data() + 18, &sequences, 8);
  std::memcpy(header.data() + 26, &entries, 8);
  return header;
}

TokenSource open_megatron(const std::string& path) {
  const std::string stem = without_extension(path);
  MappedFile idx(stem + ".idx");
  auto bin = std::make_unique<MappedFile>(stem + ".bin");
  MegatronIndex index(idx.bytes(), bin->size(), idx.path());
  TokenSource source;
  source.add(std::move(bin), index.type(), 0, 0);
  std::vector<uint64_t> starts;
  starts.reserve(index.num_documents() + 1);
  uint64_t run_offset = 0, run = 0, tokens = 0;
  for (uint64_t i = 0, document = 0; i <= index.num_sequences(); ++i) {
    for (; document <= index.num_documents() && index.document_start(document) == i; ++document)
      starts.push_back(tokens);
    if (i == index.num_sequences()) break;
    // Sequences are usually contiguous in the .bin. A new segment begins only where they are not.
    if (index.offset_bytes(i) != run_offset + run * size_of(index.type())) {
      source.add_more(index.type(), run_offset, run);
      run_offset = index.offset_bytes(i);
      run = 0;
    }
    run += index.length(i);
    tokens += index.length(i);
  }
  source.add_more(index.type(), run_offset, run);
  idx.check();
  if (source.size() > 0) source.set_documents(std::move(starts));
  return source;
}

}  // namespace esp::data
