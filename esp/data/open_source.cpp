// Opens a token source from paths: token files are mapped, text is tokenised once into a cache, and with the byte
// tokenizer a text file is mapped directly.
#include <algorithm>
#include <filesystem>

#include <fmt/format.h>

#include "esp/base/error.h"
#include "esp/data/content_type.h"
#include "esp/data/inputs.h"
#include "esp/data/prepare.h"
#include "esp/data/source.h"
#include "esp/data/token_file.h"
#include "esp/data/token_metadata.h"

namespace esp::data {
namespace {

// Mappings per process are limited (vm.max_map_count). A corpus with more files goes through the cache.
constexpr size_t kMaxMappedTexts = 16384;
// Token files up to this size are read completely when they are opened, so that ids outside the vocabulary fail at
// once.
constexpr uint64_t kTokensCheckedAtOpen = uint64_t{1} << 26;

TokenSource open_token_file(const Input& input, const SourceOptions& options) {
  switch (input.kind) {
    case InputKind::bin:
      return open_raw(input.path, options.bin_type ? *options.bin_type : raw_type(input.path));
    case InputKind::llmc:
      return open_llmc(input.path);
    default:
      return open_megatron(input.path);
  }
}

TokenSource checked(TokenSource source, int32_t vocab) {
  source.set_vocab(vocab);
  if (source.size() <= kTokensCheckedAtOpen) (void)source.max_id();
  return source;
}

bool bytes_are_tokens(std::span<const Input> inputs, const SourceOptions& options, const Tokenizer& tokenizer) {
  auto plain = [](const Input& input) {
    return input.kind == InputKind::text && compression_of(input.path) == Compression::none;
  };
  return tokenizer.kind() == "byte" && !options.allow_special && inputs.size() <= kMaxMappedTexts &&
         std::all_of(inputs.begin(), inputs.end(), plain);
}

TokenSource map_bytes(std::span<const Input> inputs, std::optional<int32_t> separator) {
  TokenSource source;
  for (const Input& input : inputs) {
    auto file = std::make_unique<MappedFile>(input.path);
    uint64_t bytes = file->size();
    const auto mark = std::as_bytes(std::span(kByteOrderMark));
    const uint64_t begin =
        bytes >= mark.size() && std::equal(mark.begin(), mark.end(), file->bytes().begin()) ? mark.size() : 0;
    if (bytes == begin) continue;
    TokenSource one;
    one.add(std::move(file), TokenType::u8, begin, bytes - begin);
    source.append(std::move(one), separator);
  }
  return source;
}

TokenSource tokenized(std::span<const Input> inputs, const SourceOptions& options, const Tokenizer& tokenizer,
                      int32_t vocab, const Log& log) {
  PrepareOptions how;
  how.inputs.assign(inputs.begin(), inputs.end());
  how.reader.text_key = options.text_key;
  how.reader.max_line_bytes = options.max_line_bytes;
  how.separator = options.separate ? SeparatorPlacement::between : SeparatorPlacement::none;
  how.allow_special = options.allow_special;
  how.may_be_empty = true;
  how.threads = options.threads;
  how.lock_timeout = options.cache_timeout;
  auto check = [&](const PrepareResult& prepared) {
    if (prepared.max_id >= vocab)
      throw UsageError(fmt::format("tokenizer: got ids up to {}; expected ids below {}, the vocabulary of the model",
                                   prepared.max_id, vocab));
    if (prepared.documents > 0 && prepared.text_bytes == 0)
      throw IoError(fmt::format("{}: got {} documents without text; expected text in some of them", inputs[0].path,
                                prepared.documents));
  };
  TokenSource source;
  if (options.cache_dir.empty()) {
    std::vector<int32_t> tokens;
    check(tokenize(how, tokenizer, *make_memory_writer(tokens, options.max_memory_bytes)));
    source.add(std::move(tokens), inputs.size() == 1 ? inputs[0].path : fmt::format("{} texts", inputs.size()));
    return source;
  }
  std::error_code failed;
  std::filesystem::create_directories(options.cache_dir, failed);
  if (failed) throw IoError(fmt::format("cannot make the cache folder {}: {}", options.cache_dir, failed.message()));
  WriterOptions writer;
  writer.type = token_type_for(tokenizer.vocab_size(), writer.format);
  const std::string key = prepare_key(how, writer, tokenizer);
  writer.output = fmt::format("{}/tokens-{}.bin", options.cache_dir, key);
  PrepareResult prepared = prepare(how, writer, tokenizer, key);
  log.info("{} tokens of {} documents {} {}", prepared.tokens, prepared.documents,
           prepared.already_complete ? "found in" : "written to", writer.output);
  check(prepared);
  if (prepared.tokens == 0) return source;
  return open_raw(writer.output, writer.type);
}

}  // namespace

TokenSource open_source(const SourceOptions& options, const Tokenizer& tokenizer, const Log& log) {
  const std::vector<Input> inputs = find_inputs(options.paths, options.format, log);
  const int32_t vocab = options.vocab > 0 ? options.vocab : tokenizer.vocab_size();
  const std::optional<int32_t> separator = options.separate ? tokenizer.special().eos : std::nullopt;
  TokenSource source;
  for (size_t at = 0; at < inputs.size();) {
    if (!holds_text(inputs[at].kind)) {  // a token file contains its own separators and may end within a document
      check_tokenizer(inputs[at], tokenizer);
      source.append(checked(open_token_file(inputs[at++], options), vocab), std::nullopt);
      continue;
    }
    size_t end = at;
    while (end < inputs.size() && holds_text(inputs[end].kind)) ++end;
    auto texts = std::span(inputs).subspan(at, end - at);
    source.append(bytes_are_tokens(texts, options, tokenizer) ? checked(map_bytes(texts, separator), vocab)
                                                              : tokenized(texts, options, tokenizer, vocab, log),
                  separator);
    at = end;
  }
  if (source.size() == 0) throw IoError(fmt::format("no tokens in {}", fmt::join(options.paths, ", ")));
  source.set_vocab(vocab);
  return source;
}

}  // namespace esp::data
