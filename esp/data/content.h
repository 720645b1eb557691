// What a file holds, decided by its bytes: magic numbers, NUL bytes, and the share of bytes that are not UTF-8. A small
// file is examined whole, a large one in samples from its beginning to its end, a compressed one where it begins.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>

namespace esp::data {

// Up to this share of stray bytes (NUL or not UTF-8) a file is still text.
inline constexpr double kMaxStrayShare = 0.001;
inline constexpr std::string_view kByteOrderMark = "\xEF\xBB\xBF";

struct Content {
  std::string what = {};  // "a Parquet file"; empty: UTF-8 text
  std::string fix = {};   // a sentence that says how to make text of it
  bool dataset = false;   // a data set in another format: a folder with one is refused, not read without it
  uint64_t examined_bytes = 0, stray_bytes = 0;
  std::string head = {};  // of text: how it begins, up to 64 KiB
  bool is_text() const { return what.empty(); }
};

// Files named .gz and .zst are decompressed. What is not a regular file, or cannot be read, is an IoError.
Content examine_file(const std::string& path);
// The same for a text in memory, all of it examined; `path` is for the sentence of the fix.
Content examine_bytes(std::string_view bytes, const std::string& path);

// IoError that names the file, what it is and what would work, unless `content` is text.
void require_text(const Content& content, std::string_view path);
// IoError where a file of raw token ids (.bin) is text or another format by its bytes.
void require_token_ids(const std::string& path);
// "a.txt: 3 of 262144 bytes examined are NUL or not UTF-8; …" for text with stray bytes, else empty.
std::string describe_stray(const Content& content, std::string_view path);

// A whole file or pipe, at most `max_bytes`. IoError where it is not text, unless `any_bytes`.
std::string read_text_file(const std::string& path, size_t max_bytes, bool any_bytes = false);

bool is_utf8(std::string_view text);

}  // namespace esp::data
