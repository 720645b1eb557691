#include "esp/data/source.h"

#include <algorithm>
#include <cstring>
#include <numeric>

#include <fmt/format.h>

#include "esp/base/check.h"
#include "esp/base/error.h"
#include "esp/base/table.h"
#include "esp/obs/file.h"

namespace esp::data {
namespace {

struct TypeRow {
  std::string_view name, short_name;
  TokenType type;
  size_t bytes;
};
constexpr TypeRow kTypes[] = {
    {"uint8", "u8", TokenType::u8, 1},   {"uint16", "u16", TokenType::u16, 2}, {"uint32", "u32", TokenType::u32, 4},
    {"int8", "i8", TokenType::i8, 1},    {"int16", "i16", TokenType::i16, 2},  {"int32", "i32", TokenType::i32, 4},
    {"int64", "i64", TokenType::i64, 8},
};

// Elements in a file may be unaligned, so they are copied one by one; compilers vectorise this loop. Returns the
// largest value, read as unsigned: a negative id is then huge, so one comparison by the caller finds any id out of
// range.
template <typename T>
uint64_t widen(const std::byte* from, std::span<int32_t> out) {
  uint64_t largest = 0;
  for (size_t i = 0; i < out.size(); ++i) {
    T value;
    std::memcpy(&value, from + i * sizeof(T), sizeof(T));
    largest = std::max(largest, static_cast<uint64_t>(static_cast<int64_t>(value)));
    out[i] = static_cast<int32_t>(value);
  }
  return largest;
}

uint64_t widen(TokenType type, const std::byte* from, std::span<int32_t> out) {
  switch (type) {
    case TokenType::u8:
      return widen<uint8_t>(from, out);
    case TokenType::u16:
      return widen<uint16_t>(from, out);
    case TokenType::u32:
      return widen<uint32_t>(from, out);
    case TokenType::i8:
      return widen<int8_t>(from, out);
    case TokenType::i16:
      return widen<int16_t>(from, out);
    case TokenType::i32:
      return widen<int32_t>(from, out);
    case TokenType::i64:
      return widen<int64_t>(from, out);
  }
  ESP_CHECK(false, "unknown token type {}", static_cast<int>(type));
}

// Returns one stored value with its sign, for error messages.
int64_t stored_value(TokenType type, const std::byte* from) {
  int64_t value = 0;
  std::memcpy(&value, from, size_of(type));
  switch (type) {
    case TokenType::i8:
      return static_cast<int8_t>(value);
    case TokenType::i16:
      return static_cast<int16_t>(value);
    case TokenType::i32:
      return static_cast<int32_t>(value);
    default:
      return value;
  }
}

}  // namespace

size_t size_of(TokenType type) {
  return kTypes[static_cast<size_t>(type)].bytes;
}

std::string_view name_of(TokenType type) {
  return kTypes[static_cast<size_t>(type)].name;
}

TokenType parse_token_type(std::string_view name) {
  for (const TypeRow& row : kTypes)
    if (row.short_name == name) return row.type;
  return find_row("token type", kTypes, name).type;
}

void TokenSource::add_segment(const std::byte* data, const MappedFile* file, TokenType type, uint64_t count,
                              uint64_t in_file) {
  if (count == 0) return;
  segments_.push_back({data, file, size_, in_file, static_cast<uint32_t>(names_.size() - 1), type});
  size_ += count;
}

void TokenSource::add(std::unique_ptr<MappedFile> file, TokenType type, uint64_t offset_bytes, uint64_t count) {
  names_.push_back(file->path());
  files_.push_back(std::move(file));
  add_more(type, offset_bytes, count);
}

void TokenSource::add_more(TokenType type, uint64_t offset_bytes, uint64_t count) {
  ESP_CHECK(!files_.empty());
  const MappedFile& file = *files_.back();
  ESP_CHECK(offset_bytes <= file.size() && count <= (file.size() - offset_bytes) / size_of(type),
            "got {} tokens at byte {} of {}; the file has only {} bytes", count, offset_bytes, file.path(),
            file.size());
  add_segment(file.bytes().data() + offset_bytes, &file, type, count, offset_bytes / size_of(type));
}

void TokenSource::add(std::vector<int32_t> tokens, std::string name) {
  names_.push_back(std::move(name));
  arrays_.push_back(std::move(tokens));
  add_segment(reinterpret_cast<const std::byte*>(arrays_.back().data()), nullptr, TokenType::i32, arrays_.back().size(),
              0);
}

void TokenSource::set_documents(std::vector<uint64_t> starts) {
  ESP_CHECK(!starts.empty() && starts.back() == size_ && std::is_sorted(starts.begin(), starts.end()));
  documents_ = std::move(starts);
}

void TokenSource::append(TokenSource&& more, std::optional<int32_t> separator) {
  if (more.size_ == 0) return;
  bool first = size_ == 0;
  // Document boundaries are known only if every part has them. A separator ends the document before it.
  bool documents = (first || documents_) && more.documents_;
  if (!first && separator) add({*separator}, "separator");
  if (documents) {
    if (first) documents_ = std::vector<uint64_t>{};
    if (!documents_->empty()) documents_->pop_back();
    for (uint64_t start : *more.documents_) documents_->push_back(size_ + start);
  } else {
    documents_.reset();
  }
  for (Segment segment : more.segments_) {
    segment.begin += size_;
    segment.name += static_cast<uint32_t>(names_.size());
    segments_.push_back(segment);
  }
  size_ += more.size_;
  std::move(more.files_.begin(), more.files_.end(), std::back_inserter(files_));
  std::move(more.arrays_.begin(), more.arrays_.end(), std::back_inserter(arrays_));
  std::move(more.names_.begin(), more.names_.end(), std::back_inserter(names_));
  more = TokenSource();
}

void TokenSource::truncate(uint64_t size) {
  ESP_CHECK(size <= size_);
  while (!segments_.empty() && segments_.back().begin >= size) segments_.pop_back();
  size_ = size;
  documents_.reset();
}

size_t TokenSource::segment_of(uint64_t index) const {
  auto after = std::upper_bound(segments_.begin(), segments_.end(), index,
                                [](uint64_t value, const Segment& segment) { return value < segment.begin; });
  return static_cast<size_t>(after - segments_.begin()) - 1;
}

void TokenSource::convert(const Segment& segment, uint64_t skip, std::span<int32_t> out) const {
  const std::byte* from = segment.data + skip * size_of(segment.type);
  const uint64_t largest = widen(segment.type, from, out);
  if (segment.file) segment.file->check();
  if (largest < static_cast<uint64_t>(vocab_)) return;
  for (size_t i = 0; i < out.size(); ++i) {
    int64_t value = stored_value(segment.type, from + i * size_of(segment.type));
    if (value >= 0 && value < vocab_) continue;
    throw IoError(
        fmt::format("{} has id {}, outside the vocabulary of {} ids. Was the file made with another tokenizer?",
                    location(segment.begin + skip + i), value, vocab_));
  }
}

void TokenSource::read(uint64_t first, std::span<int32_t> out) const {
  ESP_CHECK(first <= size_ && out.size() <= size_ - first, "got tokens [{}, {}); the source has only {}", first,
            first + out.size(), size_);
  if (out.empty()) return;
  for (size_t at = segment_of(first); !out.empty(); ++at) {
    const Segment& segment = segments_[at];
    uint64_t end = at + 1 < segments_.size() ? segments_[at + 1].begin : size_;
    size_t count = static_cast<size_t>(std::min<uint64_t>(out.size(), end - first));
    convert(segment, first - segment.begin, out.first(count));
    out = out.subspan(count);
    first += count;
  }
}

int32_t TokenSource::at(uint64_t index) const {
  int32_t token;
  read(index, {&token, 1});
  return token;
}

TokenSource::Range TokenSource::document(uint64_t index) const {
  ESP_CHECK(index < num_documents(), "got document {}; the source has only {}", index, num_documents());
  return {(*documents_)[index], (*documents_)[index + 1] - (*documents_)[index]};
}

void TokenSource::set_vocab(int32_t vocab) {
  ESP_CHECK(vocab > 0, "vocabulary: got {} ids; expected at least 1", vocab);
  vocab_ = vocab;
}

int64_t TokenSource::max_id() const {
  std::vector<int32_t> some(65536);
  int32_t largest = -1;
  for (uint64_t at = 0; at < size_; at += some.size()) {
    some.resize(std::min<uint64_t>(some.size(), size_ - at));
    read(at, some);
    largest = std::max(largest, *std::max_element(some.begin(), some.end()));
  }
  return largest;
}

std::string TokenSource::location(uint64_t index) const {
  const Segment& segment = segments_[segment_of(index)];
  return fmt::format("{}, token {}", names_[segment.name], segment.in_file + (index - segment.begin));
}

}  // namespace esp::data
