#include "esp/data/partial_file.h"

#include <fcntl.h>
#include <unistd.h>

#include <cerrno>
#include <cstdio>
#include <cstring>
#include <filesystem>
#include <utility>

#include <fmt/format.h>

#include "esp/base/check.h"
#include "esp/base/error.h"

namespace esp::data {
namespace {

constexpr size_t kBufferBytes = size_t{1} << 20;

// Reopens the output of an earlier process as NAME.partial. If that process had already published it, renames it back.
std::string reopen_partial(const std::string& path, uint64_t keep_bytes) {
  std::string partial = PartialFile::partial(path);
  if (keep_bytes > 0 && access(partial.c_str(), F_OK) != 0) (void)std::rename(path.c_str(), partial.c_str());
  return partial;
}

template <typename T>
void pack(std::span<const int32_t> tokens, std::string& buffer) {
  size_t at = buffer.size();
  buffer.resize(at + tokens.size() * sizeof(T));
  for (int32_t token : tokens) {
    T value = static_cast<T>(token);
    if (token < 0 || !std::in_range<T>(token))
      throw IoError(fmt::format("token id {} does not fit into {} bytes; use a wider token type", token, sizeof(T)));
    std::memcpy(buffer.data() + at, &value, sizeof value);
    at += sizeof value;
  }
}

}  // namespace

PartialFile::PartialFile(const std::string& path, uint64_t keep_bytes)
    : path_(path), file_(reopen_partial(path, keep_bytes), O_RDWR | O_CREAT), size_(keep_bytes) {
  if (file_.size() < keep_bytes)
    throw IoError(
        fmt::format("{}: got {} bytes; expected at least {}, as its progress file says. Remove the progress file to "
                    "start over",
                    file_.path(), file_.size(), keep_bytes));
  file_.truncate(keep_bytes);
  if (lseek(file_.fd(), 0, SEEK_END) < 0) file_.fail("cannot seek in");
}

void PartialFile::write(std::span<const std::byte> bytes) {
  buffer_.append(reinterpret_cast<const char*>(bytes.data()), bytes.size());
  size_ += bytes.size();
  if (buffer_.size() >= kBufferBytes) flush();
}

void PartialFile::write_tokens(std::span<const int32_t> tokens, TokenType type) {
  constexpr size_t kAtOnce = size_t{1} << 16;
  for (; !tokens.empty(); tokens = tokens.subspan(std::min(kAtOnce, tokens.size()))) {
    std::span<const int32_t> some = tokens.first(std::min(kAtOnce, tokens.size()));
    switch (type) {
      case TokenType::u8:
        pack<uint8_t>(some, buffer_);
        break;
      case TokenType::u16:
        pack<uint16_t>(some, buffer_);
        break;
      case TokenType::u32:
        pack<uint32_t>(some, buffer_);
        break;
      case TokenType::i32:
        pack<int32_t>(some, buffer_);
        break;
      default:
        throw UsageError(fmt::format("token type: got {}; expected uint8, uint16, uint32 or int32", name_of(type)));
    }
    size_ += some.size() * size_of(type);
    if (buffer_.size() >= kBufferBytes) flush();
  }
}

void PartialFile::write_at(uint64_t offset, std::span<const std::byte> bytes) {
  flush();
  ESP_CHECK(offset + bytes.size() <= size_);
  while (!bytes.empty()) {
    ssize_t n = pwrite(file_.fd(), bytes.data(), bytes.size(), static_cast<off_t>(offset));
    if (n < 0 && errno == EINTR) continue;
    if (n < 0) file_.fail("cannot write");
    bytes = bytes.subspan(static_cast<size_t>(n));
    offset += static_cast<uint64_t>(n);
  }
}

void PartialFile::flush() {
  file_.write_all(buffer_);
  buffer_.clear();
}

void PartialFile::sync() {
  flush();
  file_.sync();
}

void PartialFile::publish(const std::string& path) {
  if (std::rename(partial(path).c_str(), path.c_str()) == 0) return;
  if (errno != ENOENT || access(path.c_str(), F_OK) != 0)
    throw IoError(fmt::format("cannot rename {} to {}: {}", partial(path), path, errno_text(errno)));
}

void sync_parent_folder(const std::string& path) {
  std::string folder = std::filesystem::path(path).parent_path().string();
  obs::File(folder.empty() ? "." : folder, O_RDONLY | O_DIRECTORY).sync();
}

}  // namespace esp::data
