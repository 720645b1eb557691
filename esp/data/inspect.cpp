#include "esp/data/inspect.h"

#include <filesystem>

#include "esp/data/byte_stream.h"
#include "esp/data/jsonl.h"
#include "esp/data/records.h"
#include "esp/data/token_file.h"

namespace esp::data {
namespace {

constexpr size_t kMaxLineBytes = size_t{1} << 30;

uint64_t count_lines(const std::string& path) {
  LineReader lines(open_byte_stream(path), path, kMaxLineBytes);
  uint64_t count = 0;
  for (std::string_view line; lines.next(line);) ++count;
  return count;
}

uint64_t count_records(const Input& input) {
  const auto records = open_records(input, {}, kMaxLineBytes);
  uint64_t count = 0;
  while (records->next()) ++count;
  return count;
}

void describe_tokens(const TokenSource& source, TokenType type, bool whole, DataInfo& info) {
  info.type = name_of(type);
  info.tokens = source.size();
  if (whole) info.max_id = source.max_id();
}

}  // namespace

DataInfo inspect(const Input& input, std::optional<TokenType> bin_type, bool whole) {
  DataInfo info{input.path, std::string(name_of(input.kind)), "", 0, {}, {}, {}};
  const bool pair = input.kind == InputKind::megatron;
  info.bytes = std::filesystem::file_size(pair ? input.path + ".bin" : input.path);
  switch (input.kind) {
    case InputKind::text:
      info.documents = 1;
      break;
    case InputKind::jsonl:
      if (whole) info.documents = count_lines(input.path);
      break;
    case InputKind::json:
    case InputKind::csv:
    case InputKind::tsv:
      if (whole) info.documents = count_records(input);
      break;
    case InputKind::bin: {
      TokenType type = bin_type ? *bin_type : raw_type(input.path);
      describe_tokens(open_raw(input.path, type), type, whole, info);
      break;
    }
    case InputKind::llmc:
      describe_tokens(open_llmc(input.path), read_llmc_header(MappedFile(input.path).bytes(), input.path).type, whole,
                      info);
      break;
    case InputKind::megatron: {
      MappedFile idx(input.path + ".idx");
      TokenSource source = open_megatron(input.path);
      describe_tokens(source, MegatronIndex(idx.bytes(), info.bytes, idx.path()).type(), whole, info);
      info.documents = source.num_documents();
      break;
    }
  }
  return info;
}

}  // namespace esp::data
