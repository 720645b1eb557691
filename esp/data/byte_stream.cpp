#include "esp/data/byte_stream.h"

#include <fcntl.h>
#include <unistd.h>
#include <zlib.h>
#include <zstd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <vector>

#include <fmt/format.h>

#include "esp/base/error.h"
#include "esp/obs/file.h"

namespace esp::data {
namespace {

constexpr size_t kInputBytes = size_t{1} << 17;

class FileStream : public ByteStream {
 public:
  explicit FileStream(const std::string& path) : file_(path, O_RDONLY) {
    posix_fadvise(file_.fd(), 0, 0, POSIX_FADV_SEQUENTIAL);
  }
  size_t read(std::span<char> out) override {
    size_t got = 0;
    while (got < out.size()) {
      ssize_t n = ::read(file_.fd(), out.data() + got, out.size() - got);
      if (n < 0 && errno == EINTR) continue;
      if (n < 0) file_.fail("cannot read");
      if (n == 0) break;
      got += static_cast<size_t>(n);
    }
    return got;
  }
  void skip(uint64_t bytes) override {
    off_t at = lseek(file_.fd(), 0, SEEK_CUR);
    if (at < 0) return ByteStream::skip(bytes);  // not seekable, for example a pipe
    if (bytes > file_.size() - std::min(file_.size(), static_cast<uint64_t>(at)))
      throw IoError(fmt::format("{}: the file was truncated while it was read: it has no byte {}", file_.path(),
                                static_cast<uint64_t>(at) + bytes));
    if (lseek(file_.fd(), static_cast<off_t>(bytes), SEEK_CUR) < 0) file_.fail("cannot seek in");
  }

 private:
  obs::File file_;
};

class MemoryStream : public ByteStream {
 public:
  explicit MemoryStream(std::string_view bytes) : left_(bytes) {}
  size_t read(std::span<char> out) override {
    size_t n = std::min(out.size(), left_.size());
    std::memcpy(out.data(), left_.data(), n);
    left_.remove_prefix(n);
    return n;
  }

 private:
  std::string_view left_;
};

// Common part of gzip and zstd: reads compressed bytes from another stream and limits the decompressed size.
class DecompressingStream : public ByteStream {
 public:
  DecompressingStream(std::unique_ptr<ByteStream> from, std::string name, uint64_t max_bytes)
      : from_(std::move(from)), name_(std::move(name)), left_(max_bytes), max_bytes_(max_bytes), input_(kInputBytes) {}

  size_t read(std::span<char> out) override {
    size_t got = 0;
    while (got < out.size()) {
      if (have_ == 0) refill();
      size_t before = have_;
      size_t n = decode(out.subspan(got));
      got += n;
      if (n > left_) fail(fmt::format("it decompresses to more than {} bytes", max_bytes_));
      left_ -= n;
      if (max_bytes_ - left_ > kFreeDecompressedBytes + kMaxDecompressedRatio * taken_)
        fail(
            fmt::format("its first {} bytes expand to more than {} bytes; expected at most {} per byte. If it is not "
                        "damaged, decompress it to a file first",
                        taken_, max_bytes_ - left_ - n, kMaxDecompressedRatio));
      if (finished_) break;
      if (n == 0 && have_ == before && have_ > 0) fail("it is damaged: the decompressor can use no more of its data");
      if (n == 0 && have_ == 0 && ended_ && !between_)
        fail("it is not complete: the file ends in the middle of its data");
    }
    return got;
  }

 protected:
  // Decodes input() into `out` and calls consume() for the bytes used. Sets finished_ after the last member or frame.
  virtual size_t decode(std::span<char> out) = 0;

  std::span<const char> input() const { return {input_.data() + at_, have_}; }
  void consume(size_t bytes) {
    at_ += bytes;
    taken_ += bytes;
    have_ -= bytes;
  }
  void refill() {
    if (ended_) return;
    at_ = 0;
    have_ = from_->read(input_);
    ended_ = have_ < input_.size();
  }
  bool no_more_input() {
    if (have_ == 0) refill();
    return have_ == 0;
  }
  [[noreturn]] void fail(std::string_view why) const {
    throw IoError(fmt::format("cannot decompress {}: {}", name_, why));
  }
  bool between_ = false;  // true after a complete gzip member or zstd frame; another may follow
  bool finished_ = false;

 private:
  std::unique_ptr<ByteStream> from_;
  std::string name_;
  uint64_t left_, max_bytes_, taken_ = 0;  // taken_: number of compressed bytes decoded so far
  std::vector<char> input_;
  size_t at_ = 0, have_ = 0;
  bool ended_ = false;
};

class GzipStream : public DecompressingStream {
 public:
  GzipStream(std::unique_ptr<ByteStream> from, std::string name, uint64_t max_bytes)
      : DecompressingStream(std::move(from), std::move(name), max_bytes) {
    if (inflateInit2(&z_, 15 + 16) != Z_OK) fail("out of memory");
  }
  ~GzipStream() override { inflateEnd(&z_); }

 private:
  size_t decode(std::span<char> out) override {
    if (between_ && at_end()) {
      finished_ = true;
      return 0;
    }
    between_ = false;
    std::span<const char> in = input();
    z_.next_in = reinterpret_cast<Bytef*>(const_cast<char*>(in.data()));
    z_.avail_in = static_cast<uInt>(in.size());
    z_.next_out = reinterpret_cast<Bytef*>(out.data());
    z_.avail_out = static_cast<uInt>(std::min<size_t>(out.size(), 1u << 30));
    const uInt room = z_.avail_out;
    int result = inflate(&z_, Z_NO_FLUSH);
    consume(in.size() - z_.avail_in);
    if (result == Z_STREAM_END) {
      between_ = true;
      inflateReset(&z_);
      z_.msg = nullptr;
    } else if (result != Z_OK && result != Z_BUF_ERROR) {
      fail(z_.msg ? z_.msg : "its data are damaged");
    }
    return room - z_.avail_out;
  }

  // After a gzip member, zero padding is legal; any other bytes must start another member.
  bool at_end() {
    while (!no_more_input()) {
      if (input()[0] != 0) return false;
      consume(1);
    }
    return true;
  }

  z_stream z_{};
};

class ZstdStream : public DecompressingStream {
 public:
  ZstdStream(std::unique_ptr<ByteStream> from, std::string name, uint64_t max_bytes)
      : DecompressingStream(std::move(from), std::move(name), max_bytes), stream_(ZSTD_createDStream()) {
    if (!stream_) fail("out of memory");
  }
  ~ZstdStream() override { ZSTD_freeDStream(stream_); }

 private:
  size_t decode(std::span<char> out) override {
    if (between_ && no_more_input()) {
      finished_ = true;
      return 0;
    }
    ZSTD_inBuffer in{input().data(), input().size(), 0};
    ZSTD_outBuffer to{out.data(), out.size(), 0};
    size_t result = ZSTD_decompressStream(stream_, &to, &in);
    if (ZSTD_isError(result)) fail(ZSTD_getErrorName(result));
    consume(in.pos);
    between_ = result == 0;
    return to.pos;
  }

  ZSTD_DStream* stream_;
};

std::unique_ptr<ByteStream> decompress(std::unique_ptr<ByteStream> from, Compression compression, std::string name,
                                       uint64_t max_bytes) {
  switch (compression) {
    case Compression::none:
      return from;
    case Compression::gzip:
      return std::make_unique<GzipStream>(std::move(from), std::move(name), max_bytes);
    case Compression::zstd:
      return std::make_unique<ZstdStream>(std::move(from), std::move(name), max_bytes);
  }
  return from;
}

}  // namespace

bool has_extension(std::string_view path, std::string_view extension) {
  const auto lower = [](char c) { return c >= 'A' && c <= 'Z' ? static_cast<char>(c - 'A' + 'a') : c; };
  return path.size() >= extension.size() &&
         std::equal(extension.begin(), extension.end(), path.end() - static_cast<std::ptrdiff_t>(extension.size()),
                    [&](char a, char b) { return lower(a) == lower(b); });
}

Compression compression_of(std::string_view path) {
  if (has_extension(path, ".gz")) return Compression::gzip;
  if (has_extension(path, ".zst")) return Compression::zstd;
  return Compression::none;
}

void ByteStream::skip(uint64_t bytes) {
  std::vector<char> ignored(std::min<uint64_t>(bytes, kInputBytes));
  while (bytes > 0) {
    size_t n = read(std::span(ignored).first(std::min<uint64_t>(bytes, ignored.size())));
    if (n == 0) throw IoError(fmt::format("input file truncated while it was read: {} bytes are missing", bytes));
    bytes -= n;
  }
}

std::unique_ptr<ByteStream> open_byte_stream(const std::string& path, uint64_t max_bytes) {
  return decompress(std::make_unique<FileStream>(path), compression_of(path), path, max_bytes);
}

std::unique_ptr<ByteStream> make_byte_stream(std::string_view bytes, Compression compression, std::string name,
                                             uint64_t max_bytes) {
  return decompress(std::make_unique<MemoryStream>(bytes), compression, std::move(name), max_bytes);
}

}  // namespace esp::data
