// Keys that identify the inputs of a token cache.
#include <stdlib.h>
#include <sys/stat.h>
#include <xxhash.h>

#include <algorithm>
#include <cerrno>
#include <filesystem>

#include <fmt/format.h>

#include "esp/base/check.h"
#include "esp/base/error.h"
#include "esp/data/prepare.h"
#include "esp/obs/file.h"

namespace esp::data {
namespace {

constexpr std::string_view kVersion = "espalier tokens 1";
constexpr size_t kMaxTokenizerBytes = size_t{256} << 20;

std::string digest(std::string_view text) {
  XXH128_hash_t hash = XXH3_128bits(text.data(), text.size());
  return fmt::format("{:016x}{:016x}", hash.high64, hash.low64);
}

// Identifies a file and its version without reading it.
std::string identity(const std::string& path) {
  struct stat info {};
  if (stat(path.c_str(), &info) != 0) throw IoError(fmt::format("cannot stat {}: {}", path, errno_text(errno)));
  return fmt::format("{}\n{} {} {}\n", std::filesystem::absolute(path).lexically_normal().string(), info.st_size,
                     info.st_mtim.tv_sec, info.st_mtim.tv_nsec);
}

class ScratchFolder {
 public:
  ScratchFolder() {
    path_ = (std::filesystem::temp_directory_path() / "espalier-tokenizer-XXXXXX").string();
    if (!mkdtemp(path_.data())) throw IoError(fmt::format("cannot make {}: {}", path_, errno_text(errno)));
  }
  ~ScratchFolder() {
    std::error_code ignored;
    std::filesystem::remove_all(path_, ignored);
  }
  ScratchFolder(const ScratchFolder&) = delete;
  ScratchFolder& operator=(const ScratchFolder&) = delete;
  const std::string& path() const { return path_; }

 private:
  std::string path_;
};

}  // namespace

// The key of a tokenizer is a hash of the files it saves: every option that changes ids is in those files.
std::string tokenizer_key(const Tokenizer& tokenizer) {
  const SpecialTokens& special = tokenizer.special();
  std::string all = fmt::format("{} {} {}\n", tokenizer.kind(), tokenizer.vocab_size(), special.eos.value_or(-1));
  if (tokenizer.kind() != "byte") {
    ScratchFolder folder;
    tokenizer.save(folder.path());
    std::vector<std::filesystem::path> files(std::filesystem::directory_iterator(folder.path()), {});
    std::sort(files.begin(), files.end());
    for (const std::filesystem::path& file : files)
      all += file.filename().string() + "\n" + digest(obs::read_whole_file(file.string(), kMaxTokenizerBytes)) + "\n";
  }
  return digest(all);
}

std::string prepare_key(const PrepareOptions& options, const WriterOptions& writer, const Tokenizer& tokenizer) {
  std::string all = fmt::format("{}\n{}\n", kVersion, tokenizer_key(tokenizer));
  all += fmt::format("{} {} {} {} {} {} {}\n", writer.format, name_of(writer.type), writer.shard_tokens,
                     options.reader.text_key, options.reader.chunk_bytes, static_cast<int>(options.separator),
                     options.allow_special);
  for (const Input& input : options.inputs) all += fmt::format("{} {}", name_of(input.kind), identity(input.path));
  return digest(all);
}

}  // namespace esp::data
