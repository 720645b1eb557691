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
#include "esp/data/growing_file.h"
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
    throw IoError(fmt::format("a progress file has no count \"{}\"; remove it to begin anew", key));
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
    GrowingFile::publish(options_.output);
    sync_folder_of(options_.output);
  }
  std::vector<std::string> outputs() const override { return {options_.output}; }

 private:
  WriterOptions options_;
  GrowingFile file_;
};

// Shards are cut at exactly shard_tokens; a header is written when its shard is complete.
class LlmcWriter : public TokenWriter {
 public:
  LlmcWriter(const WriterOptions& options, const Json* resume)
      : options_(options), stem_(strip(options.output, ".bin")), shard_(number(resume, "shard")) {
    (void)llmc_header(options.type, 0);  // refuses other types
    if (options.shard_tokens == 0 || options.shard_tokens > INT32_MAX)
      throw UsageError(fmt::format("an llm.c shard holds 1 to {} tokens, not {}", INT32_MAX, options.shard_tokens));
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
    for (const std::string& path : outputs()) GrowingFile::publish(path);
    sync_folder_of(name(0));
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
  std::optional<GrowingFile> file_;
};

// Lengths of documents wait in a file of their own until their number is known and the index can be written.
class MegatronWriter : public TokenWriter {
 public:
  MegatronWriter(const WriterOptions& options, const Json* resume)
      : type_(options.type),
        stem_(strip(strip(options.output, ".bin"), ".idx")),
        bin_(stem_ + ".bin", number(resume, "tokens") * size_of(options.type)),
        lengths_(stem_ + ".lengths", number(resume, "documents") * 4),
        in_document_(number(resume, "in_document")) {
    (void)megatron_code(type_);  // refuses other types
  }

  void append(std::span<const int32_t> tokens) override {
    bin_.write_tokens(tokens, type_);
    in_document_ += tokens.size();
  }
  void end_document() override {
    if (in_document_ > INT32_MAX)
      throw IoError(fmt::format("document {} has {} tokens; a Megatron index counts to {}", lengths_.size() / 4,
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
    ESP_CHECK(in_document_ == 0, "an open document");
    bin_.sync();
    lengths_.flush();
    write_index();
    GrowingFile::publish(stem_ + ".bin");
    GrowingFile::publish(stem_ + ".idx");
    sync_folder_of(stem_);
  }
  void clean_up() override { unlink(GrowingFile::partial(stem_ + ".lengths").c_str()); }
  std::vector<std::string> outputs() const override { return {stem_ + ".bin", stem_ + ".idx"}; }

 private:
  template <typename T>
  static void put(GrowingFile& file, T value) {
    file.write(std::as_bytes(std::span(&value, 1)));
  }

  void write_index() {
    const uint64_t documents = lengths_.size() / 4;
    MappedFile lengths(GrowingFile::partial(stem_ + ".lengths"));
    GrowingFile index(stem_ + ".idx", 0);
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
  GrowingFile bin_, lengths_;
  uint64_t in_document_;
};

class MemoryWriter : public TokenWriter {
 public:
  MemoryWriter(std::vector<int32_t>& tokens, uint64_t max_bytes) : tokens_(tokens), max_bytes_(max_bytes) {}
  void append(std::span<const int32_t> more) override {
    if ((tokens_.size() + more.size()) * sizeof(int32_t) > max_bytes_)
      throw IoError(
          fmt::format("the text makes more than {} MiB of tokens, too much to hold in memory; give a cache folder",
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

struct WriterRow {
  std::string_view name;
  std::unique_ptr<TokenWriter> (*make)(const WriterOptions& options, const Json* resume);
};
constexpr WriterRow kWriters[] = {
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
