// Detects the content type of a file from its bytes (not its name): magic numbers, NUL bytes, and the share of bytes
// that are not UTF-8. A small file is examined completely, a large file in samples, a compressed file at its start.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>

namespace esp::data {

// A file with at most this share of invalid bytes (NUL or not UTF-8) still counts as text.
inline constexpr double kMaxInvalidShare = 0.001;
inline constexpr std::string_view kByteOrderMark = "\xEF\xBB\xBF";

struct ContentType {
  std::string what = {};  // name of the format, such as "a Parquet file"; empty for UTF-8 text
  std::string fix = {};   // a sentence that says how to convert the file to text
  bool dataset = false;   // the file may hold a data set (Parquet, xz, tar, …): a folder that contains it is rejected
  uint64_t examined_bytes = 0, invalid_bytes = 0;
  std::string head = {};  // text only: the first bytes of the file, up to 64 KiB
  bool is_text() const { return what.empty(); }
};

// Decompresses files named .gz and .zst. Throws IoError if the file is not regular or cannot be read.
ContentType detect_content_type(const std::string& path);
// As detect_content_type, for bytes in memory, all of which are examined. `path` appears only in the text of the fix.
ContentType detect_content_type_of_bytes(std::string_view bytes, const std::string& path);

// Throws an IoError with the file, its format and a fix, unless `content` is text.
void require_text(const ContentType& content, std::string_view path);
// Throws IoError if the bytes of a .bin file, which should be raw token ids, are text or another format.
void require_token_ids(const std::string& path);
// Returns "a.txt: 3 of 262144 bytes examined are NUL or not UTF-8; …" for text with invalid bytes, otherwise "".
std::string describe_invalid_bytes(const ContentType& content, std::string_view path);

// Reads a complete file or pipe of at most `max_bytes`. Throws IoError if it is not text, unless `any_bytes` is set.
std::string read_text_file(const std::string& path, size_t max_bytes, bool any_bytes = false);

bool is_utf8(std::string_view text);

}  // namespace esp::data
