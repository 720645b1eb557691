#include "esp/data/token_writer.h"

#include <unistd.h>

#include <algorithm>
#include <cstring>
#include <functional>
#include <optional>

#include <fmt/format.h>
#include <nlohmann/json.hpp>

#include "esp/base/check.h"
#include "esp/base/error.h"
#include "esp/base/table.h"
#include "esp/data/partial_file.h"
#include "esp/data/token_file.h"

namespace esp::data {
namespace {

std::string strip(const std::string& path, std::string_view extension) {
  return path.ends_with(extension) ? path.substr(0, path.size() - extension.size()) : path;
}

uint64_t number(const Json* resume, const char* key) {
  if (!resume) return 0;
  auto found = resume->find(key);
  if (found == resume->end() || !found->is_number_unsigned())
    throw IoError(fmt::format("the progress file has no count \"{}\"; remove it to start over", key));
  return found->get<uint64_t>();
}

class RawWriter : public TokenWriter {
 public:
  RawWriter(const WriterOptions& options, const Json* resume)
      : options_(options), file_(options.output, number(resume, "tokens") * size_of(options.type)) {}

  void append(std::span<const int32_t> tokens) override { file_.write_tokens(tokens, options_.type); }
  void end_document() override {}
  Json checkpoint() override {
    file_.sync();
    return {{"tokens", file_.size() / size_of(options_.type)}};
  }
  void finish() override {
    file_.sync();
    PartialFile::publish(options_.output);
    sync_parent_folder(options_.output);
  }
  std::vector<std::string> outputs() const override { return {options_.output}; }

 private:
  WriterOptions options_;
  PartialFile file_;
};

// Cuts shards at exactly shard_tokens. The header is written when its shard is complete.
class LlmcWriter : public TokenWriter {
 public:
  LlmcWriter(const WriterOptions& options, const Json* resume)
      : options_(options), stem_(strip(options.output, ".bin")), shard_(number(resume, "shard")) {
    (void)llmc_header(options.type, 0);  // rejects unsupported token types
    if (options.shard_tokens == 0 || options.shard_tokens > INT32_MAX)
      throw UsageError(
          fmt::format("llm.c shards: got {} tokens per shard; expected 1 to {}", options.shard_tokens, INT32_MAX));
    open(number(resume, "tokens"));
  }

  void append(std::span<const int32_t> tokens) override {
    while (!tokens.empty()) {
      if (in_shard_ == options_.shard_tokens) {
        close();
        ++shard_;
        open(0);
      }
      size_t some = std::min<uint64_t>(tokens.size(), options_.shard_tokens - in_shard_);
      file_->write_tokens(tokens.first(some), options_.type);
      in_shard_ += some;
      tokens = tokens.subspan(some);
    }
  }
  void end_document() override {}
  Json checkpoint() override {
    file_->sync();
    return {{"shard", shard_}, {"tokens", in_shard_}};
  }
  void finish() override {
    close();
    for (const std::string& path : outputs()) PartialFile::publish(path);
    sync_parent_folder(name(0));
  }
  std::vector<std::string> outputs() const override {
    std::vector<std::string> paths;
    for (uint64_t i = 0; i <= shard_; ++i) paths.push_back(name(i));
    return paths;
  }

 private:
  std::string name(uint64_t shard) const { return fmt::format("{}_{:06}.bin", stem_, shard); }
  void open(uint64_t tokens) {
    uint64_t keep = tokens == 0 ? 0 : kLlmcHeaderBytes + tokens * size_of(options_.type);
    file_.emplace(name(shard_), keep);
    if (keep == 0) file_->write(llmc_header(options_.type, 0));
    in_shard_ = tokens;
  }
  void close() {
    file_->write_at(0, llmc_header(options_.type, in_shard_));
    file_->sync();
  }

  WriterOptions options_;
  std::string stem_;
  uint64_t shard_;
  uint64_t in_shard_ = 0;
  std::optional<PartialFile> file_;
};

// Document lengths go to a temporary file (NAME.lengths) until their number is known and the index can be written.
class MegatronWriter : public TokenWriter {
 public:
  MegatronWriter(const WriterOptions& options, const Json* resume)
      : type_(options.type),
        stem_(strip(strip(options.output, ".bin"), ".idx")),
        bin_(stem_ + ".bin", number(resume, "tokens") * size_of(options.type)),
        lengths_(stem_ + ".lengths", number(resume, "documents") * 4),
        in_document_(number(resume, "in_document")) {
    (void)megatron_code(type_);  // rejects unsupported token types
  }

  void append(std::span<const int32_t> tokens) override {
    bin_.write_tokens(tokens, type_);
    in_document_ += tokens.size();
  }
  void end_document() override {
    if (in_document_ > INT32_MAX)
      throw IoError(fmt::format("document {} has {} tokens; a Megatron index allows at most {}", lengths_.size() / 4,
                                in_document_, INT32_MAX));
    lengths_.write_tokens(std::vector<int32_t>{static_cast<int32_t>(in_document_)}, TokenType::i32);
    in_document_ = 0;
  }
  Json checkpoint() override {
    bin_.sync();
    lengths_.sync();
    return {
        {"tokens", bin_.size() / size_of(type_)}, {"documents", lengths_.size() / 4}, {"in_document", in_document_}};
  }
  void finish() override {
    ESP_CHECK(in_document_ == 0, "finish() was called within a document");
    bin_.sync();
    lengths_.flush();
    write_index();
    PartialFile::publish(stem_ + ".bin");
    PartialFile::publish(stem_ + ".idx");
    sync_parent_folder(stem_);
  }
  void clean_up() override { unlink(PartialFile::partial(stem_ + ".lengths").c_str()); }
  std::vector<std::string> outputs() const override { return {stem_ + ".bin", stem_ + ".idx"}; }

 private:
  template <typename T>
  static void put(PartialFile& file, T value) {
    file.write(std::as_bytes(std::span(&value, 1)));
  }

  void write_index() {
    const uint64_t documents = lengths_.size() / 4;
    MappedFile lengths(PartialFile::partial(stem_ + ".lengths"));
    PartialFile index(stem_ + ".idx", 0);
    index.write(megatron_header(type_, documents, documents + 1));
    index.write(lengths.bytes());
    int64_t offset = 0;
    for (uint64_t i = 0; i < documents; ++i) {
      int32_t length;
      std::memcpy(&length, lengths.bytes().data() + 4 * i, 4);
      put(index, offset);
      offset += int64_t{length} * static_cast<int64_t>(size_of(type_));
    }
    for (uint64_t i = 0; i <= documents; ++i) put(index, static_cast<int64_t>(i));
    index.sync();
  }

  TokenType type_;
  std::string stem_;
  PartialFile bin_, lengths_;
  uint64_t in_document_;
};

class MemoryWriter : public TokenWriter {
 public:
  MemoryWriter(std::vector<int32_t>& tokens, uint64_t max_bytes) : tokens_(tokens), max_bytes_(max_bytes) {}
  void append(std::span<const int32_t> more) override {
    if ((tokens_.size() + more.size()) * sizeof(int32_t) > max_bytes_)
      throw IoError(fmt::format("the text makes more than {} MiB of tokens, too many for memory; set a cache folder",
                                max_bytes_ >> 20));
    tokens_.insert(tokens_.end(), more.begin(), more.end());
  }
  void end_document() override {}
  Json checkpoint() override { return Json::object(); }
  void finish() override {}
  std::vector<std::string> outputs() const override { return {}; }

 private:
  std::vector<int32_t>& tokens_;
  uint64_t max_bytes_;
};

template <typename Writer>
std::unique_ptr<TokenWriter> make(const WriterOptions& options, const Json* resume) {
  return std::make_unique<Writer>(options, resume);
}

struct WriterFactory {
  std::string_view name;
  std::unique_ptr<TokenWriter> (*make)(const WriterOptions& options, const Json* resume);
};
constexpr WriterFactory kWriters[] = {
    {"bin", make<RawWriter>}, {"llmc", make<LlmcWriter>}, {"megatron", make<MegatronWriter>}};

}  // namespace

std::unique_ptr<TokenWriter> make_writer(const WriterOptions& options, const Json* resume) {
  return find_row("token format", kWriters, options.format).make(options, resume);
}

std::unique_ptr<TokenWriter> make_memory_writer(std::vector<int32_t>& tokens, uint64_t max_bytes) {
  return std::make_unique<MemoryWriter>(tokens, max_bytes);
}

TokenType token_type_for(int32_t vocab, std::string_view format) {
  if (vocab <= 65536) return TokenType::u16;
  return format == "megatron" ? TokenType::i32 : TokenType::u32;
}

}  // namespace esp::data
