// Writes token files (raw .bin, llm.c shards, Megatron .idx + .bin) or tokens in memory.
//
// Output files are named ….partial until finish(). checkpoint() makes all appended tokens durable and returns a small
// JSON object. A writer constructed from that object continues byte for byte and ignores anything written after that
// checkpoint. The output buffers bound the memory. Not thread-safe.
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
  std::string format = "bin";  // one of bin, llmc, megatron
  // bin: the file. llmc: NAME or NAME.bin becomes NAME_000000.bin, …. megatron: NAME becomes NAME.bin and NAME.idx.
  std::string output = {};
  TokenType type = TokenType::u16;
  uint64_t shard_tokens = 100'000'000;  // tokens per llm.c shard
};

class TokenWriter {
 public:
  virtual ~TokenWriter() = default;
  virtual void append(std::span<const int32_t> tokens) = 0;
  virtual void end_document() = 0;
  virtual Json checkpoint() = 0;
  // Makes the output durable and renames it to its final name.
  virtual void finish() = 0;
  // Removes files that only a resumed writer needs. Earlier checkpoint() results become invalid.
  virtual void clean_up() {}
  // The files that finish() creates.
  virtual std::vector<std::string> outputs() const = 0;
};

// `resume`: result of checkpoint(), or null to start. Throws UsageError for an unsupported format or type.
std::unique_ptr<TokenWriter> make_writer(const WriterOptions& options, const Json* resume = nullptr);
// Appends to `tokens`; throws IoError beyond `max_bytes`.
std::unique_ptr<TokenWriter> make_memory_writer(std::vector<int32_t>& tokens, uint64_t max_bytes);

// uint16 if every id of the vocabulary fits, otherwise uint32 (Megatron: int32).
TokenType token_type_for(int32_t vocab, std::string_view format);

}  // namespace esp::data
