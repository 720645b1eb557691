// A corpus as one long, indexable sequence of token ids.
//
// Tokens lie where they were stored (8, 16, 32 or 64 bits wide, memory mapped or in memory) and become int32 when they
// are read. Everything an index could reach is checked against the files' sizes when they are opened, so that a bad
// data set fails at once. Several files are one source; between two of them, and between the documents of text, stands
// the tokenizer's end-of-text id where it has one.
//
// A source owns its mappings, is moved but not copied, and may be read from any number of threads at once. A read from
// a file that changed since it was opened is obs::FileChanged (mapped_file.h), never other tokens.
#pragma once

#include <chrono>
#include <cstdint>
#include <functional>
#include <limits>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "esp/base/clock.h"
#include "esp/base/log.h"
#include "esp/data/mapped_file.h"
#include "esp/data/tokenizer/tokenizer.h"

namespace esp::data {

enum class TokenType : uint8_t { u8, u16, u32, i8, i16, i32, i64 };
size_t size_of(TokenType type);
std::string_view name_of(TokenType type);
TokenType parse_token_type(std::string_view name);  // UsageError lists the known names

class TokenSource {
 public:
  TokenSource() = default;
  TokenSource(TokenSource&&) noexcept = default;
  TokenSource& operator=(TokenSource&&) noexcept = default;

  uint64_t size() const { return size_; }
  // Tokens [first, first + out.size()); beyond the end is our bug. An id outside the vocabulary is an IoError that
  // names file and offset.
  void read(uint64_t first, std::span<int32_t> out) const;
  int32_t at(uint64_t index) const;

  // Documents, where the format records them (Megatron); 0 where it does not.
  uint64_t num_documents() const { return documents_ ? documents_->size() - 1 : 0; }
  struct Range {
    uint64_t first, count;
  };
  Range document(uint64_t index) const;

  // Asked, on the thread that reads, where a file was written since it was opened and has its former size: throws
  // unless the content is the same. Without it every such file is obs::FileChanged.
  void compare_with(std::function<void(const std::string& path)> compare) { compare_ = std::move(compare); }

  // From now on ids at or above `vocab` are refused as they are read.
  void set_vocab(int32_t vocab);
  int32_t vocab() const { return vocab_; }
  // The largest id, by reading everything. Ids are checked on the way.
  int64_t max_id() const;
  // Where token `index` is stored, for messages: «corpus.bin, token 17».
  std::string where(uint64_t index) const;

  // Building.
  void add(std::unique_ptr<MappedFile> file, TokenType type, uint64_t offset_bytes, uint64_t count);
  void add(std::vector<int32_t> tokens, std::string name);
  // `count` tokens at `offset_bytes` of the file added last.
  void add_more(TokenType type, uint64_t offset_bytes, uint64_t count);
  // Token index at which each document begins, and the end.
  void set_documents(std::vector<uint64_t> starts);
  void append(TokenSource&& more, std::optional<int32_t> separator);
  // Only the first `size` tokens from now on: the rest is held out.
  void shorten(uint64_t size);

 private:
  struct Piece {
    const std::byte* data;
    const MappedFile* file;  // null: an array
    uint64_t begin;          // index of its first token in the source
    uint64_t in_file;        // index of its first token in its file
    uint32_t name;           // into names_
    TokenType type;
  };
  void add_piece(const std::byte* data, const MappedFile* file, TokenType type, uint64_t count, uint64_t in_file);
  size_t piece_of(uint64_t index) const;
  void convert(const Piece& piece, uint64_t skip, std::span<int32_t> out) const;
  void check(const MappedFile& file) const;

  std::vector<Piece> pieces_;
  std::vector<std::unique_ptr<MappedFile>> files_;
  std::vector<std::vector<int32_t>> arrays_;
  std::vector<std::string> names_;
  std::optional<std::vector<uint64_t>> documents_;
  std::function<void(const std::string& path)> compare_;
  uint64_t size_ = 0;
  int32_t vocab_ = std::numeric_limits<int32_t>::max();
};

struct SourceOptions {
  std::vector<std::string> paths = {};     // files, folders (all text below them) or globs; taken in this order
  std::string format = "auto";             // auto, text, jsonl, json, csv, tsv, bin, llmc, megatron (inputs.h)
  std::string text_key = "text";           // of a JSON object, or a column
  std::optional<TokenType> bin_type = {};  // of a raw .bin; absent: what stands beside it, else uint16
  bool separate = true;                    // end-of-text id between documents
  bool allow_special = false;              // "<|endoftext|>" written in a text is that one id, not its letters
  int32_t vocab = 0;                       // ids must be below; 0: the tokenizer's
  std::string cache_dir = {};              // where token caches are kept; empty: small texts are tokenised into memory
  int threads = 1;                         // that tokenise
  size_t max_line_bytes = size_t{64} << 20;         // of a record
  uint64_t max_memory_bytes = uint64_t{1} << 30;    // of tokens kept in memory when there is no cache
  Duration cache_timeout = std::chrono::hours(24);  // for another process to finish the same cache
};

// Opens, checks and, for text, tokenises. Wrong options are UsageError, wrong files IoError.
TokenSource open_source(const SourceOptions& options, const Tokenizer& tokenizer, const Log& log = {});

}  // namespace esp::data
