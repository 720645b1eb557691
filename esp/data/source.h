// A corpus as one indexable sequence of token ids.
//
// Tokens stay in their stored form (8, 16, 32 or 64 bits wide; memory mapped or in memory) and are converted to int32
// when read. All offsets are checked against the file sizes when a file is opened, so that a bad data set fails at
// once. Several files form one source. The tokenizer's end-of-text id, if it has one, separates files and the documents
// of a text.
//
// A source owns its mappings and is movable but not copyable. Reading is thread-safe. Reading from a file that has
// changed since it was opened throws obs::FileChanged (mapped_file.h) and never returns other tokens.
#pragma once

#include <chrono>
#include <cstdint>
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
TokenType parse_token_type(std::string_view name);  // throws a UsageError that lists the known names

class TokenSource {
 public:
  TokenSource() = default;
  TokenSource(TokenSource&&) noexcept = default;
  TokenSource& operator=(TokenSource&&) noexcept = default;

  uint64_t size() const { return size_; }
  // Reads tokens [first, first + out.size()); a range beyond the end is a bug of the caller. An id outside the
  // vocabulary is an IoError that names the file and the offset.
  void read(uint64_t first, std::span<int32_t> out) const;
  int32_t at(uint64_t index) const;

  // Number of documents if the format records them (Megatron), otherwise 0.
  uint64_t num_documents() const { return documents_ ? documents_->size() - 1 : 0; }
  struct Range {
    uint64_t first, count;
  };
  Range document(uint64_t index) const;

  // From now on read() rejects ids >= `vocab`.
  void set_vocab(int32_t vocab);
  int32_t vocab() const { return vocab_; }
  // Reads everything and returns the largest id. Ids are checked against the vocabulary.
  int64_t max_id() const;
  // Storage location of token `index`, for messages: "corpus.bin, token 17".
  std::string location(uint64_t index) const;

  // The methods below build a source.
  void add(std::unique_ptr<MappedFile> file, TokenType type, uint64_t offset_bytes, uint64_t count);
  void add(std::vector<int32_t> tokens, std::string name);
  // Adds `count` tokens at `offset_bytes` of the file added last.
  void add_more(TokenType type, uint64_t offset_bytes, uint64_t count);
  // `starts`: index of the first token of each document, then the total number of tokens.
  void set_documents(std::vector<uint64_t> starts);
  void append(TokenSource&& more, std::optional<int32_t> separator);
  // Keeps only the first `size` tokens; the rest is held out.
  void truncate(uint64_t size);

 private:
  struct Segment {
    const std::byte* data;
    const MappedFile* file;  // null: an array in memory
    uint64_t begin;          // index of the first token in the source
    uint64_t in_file;        // index of the first token in its file
    uint32_t name;           // index into names_
    TokenType type;
  };
  void add_segment(const std::byte* data, const MappedFile* file, TokenType type, uint64_t count, uint64_t in_file);
  size_t segment_of(uint64_t index) const;
  void convert(const Segment& segment, uint64_t skip, std::span<int32_t> out) const;

  std::vector<Segment> segments_;
  std::vector<std::unique_ptr<MappedFile>> files_;
  std::vector<std::vector<int32_t>> arrays_;
  std::vector<std::string> names_;
  std::optional<std::vector<uint64_t>> documents_;
  uint64_t size_ = 0;
  int32_t vocab_ = std::numeric_limits<int32_t>::max();
};

struct SourceOptions {
  std::vector<std::string> paths = {};       // files, folders (all text below them) or globs; read in this order
  std::string format = "auto";               // auto, text, jsonl, json, csv, tsv, bin, llmc, megatron (inputs.h)
  std::string text_key = "text";             // key of a JSON object, or a column name
  std::optional<TokenType> bin_type = {};    // token type of a raw .bin; absent: from NAME.json, otherwise uint16
  bool separate = true;                      // write the end-of-text id between documents
  bool allow_special = false;                // encode "<|endoftext|>" in a text as one id, not as characters
  int32_t vocab = 0;                         // upper bound of ids; 0: the tokenizer's vocabulary
  std::string cache_dir = {};                // folder of token caches; empty: small texts are tokenised into memory
  int threads = 1;                           // threads for tokenisation
  size_t max_line_bytes = size_t{64} << 20;  // longest record
  uint64_t max_memory_bytes = uint64_t{1} << 30;    // tokens kept in memory without a cache
  Duration cache_timeout = std::chrono::hours(24);  // how long to wait for another process that writes the same cache
};

// Opens and checks the files and tokenises text. Wrong options are UsageError, wrong files IoError.
TokenSource open_source(const SourceOptions& options, const Tokenizer& tokenizer, const Log& log = {});

}  // namespace esp::data
