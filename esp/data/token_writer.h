// Writing token files: raw .bin, llm.c shards, Megatron .idx + .bin, or memory.
//
// Files grow under a temporary name (….partial) and get their own when all is done. checkpoint() makes what was
// appended durable and says in a small JSON object how to go on from there: a writer made with it continues byte for
// byte, whatever had been written after it. Memory is bounded by the output buffers. One thread at a time.
#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "esp/base/json.h"
#include "esp/data/source.h"

namespace esp::data {

struct WriterOptions {
  std::string format = "bin";  // bin, llmc, megatron
  // bin: the file. llmc: NAME or NAME.bin becomes NAME_000000.bin, …. megatron: NAME becomes NAME.bin and NAME.idx.
  std::string output = {};
  TokenType type = TokenType::u16;
  uint64_t shard_tokens = 100'000'000;  // of an llm.c shard
};

class TokenWriter {
 public:
  virtual ~TokenWriter() = default;
  virtual void append(std::span<const int32_t> tokens) = 0;
  virtual void end_document() = 0;
  virtual Json checkpoint() = 0;
  // Durable and under its own name.
  virtual void finish() = 0;
  // Removes what only a resumed writer could need; after this no checkpoint() is good any more.
  virtual void clean_up() {}
  // Files that finish() leaves.
  virtual std::vector<std::string> outputs() const = 0;
};

// `resume`: what checkpoint() gave, or null to begin. UsageError for a format or type that does not fit.
std::unique_ptr<TokenWriter> make_writer(const WriterOptions& options, const Json* resume = nullptr);
// Into `tokens`, IoError beyond `max_bytes`.
std::unique_ptr<TokenWriter> make_memory_writer(std::vector<int32_t>& tokens, uint64_t max_bytes);

// uint16 where every id of the vocabulary fits, else uint32 (Megatron: int32).
TokenType token_type_for(int32_t vocab, std::string_view format);

}  // namespace esp::data
