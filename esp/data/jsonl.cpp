#include "esp/data/jsonl.h"

#include <algorithm>

#include <fmt/format.h>
#include <fmt/ranges.h>
#include <nlohmann/json.hpp>

#include "esp/base/error.h"
#include "esp/base/json.h"
#include "esp/data/content_type.h"

namespace esp::data {
namespace {

constexpr size_t kChunkBytes = size_t{1} << 17;
constexpr size_t kKeysInMessages = 12;

// SAX handler that keeps the requested values of the outermost object of one line.
class FieldExtractor : public nlohmann::json_sax<nlohmann::json> {
 public:
  // `given` has one element per key, all false.
  FieldExtractor(const std::vector<std::string>& keys, std::vector<JsonField>& fields, std::vector<bool>& given,
                 std::vector<std::string>& seen)
      : keys_(keys), fields_(fields), given_(given), seen_(seen) {}

  bool null() override { return store(std::monostate()); }
  bool boolean(bool value) override { return store(value); }
  bool number_integer(int64_t value) override { return store(value); }
  bool number_unsigned(uint64_t value) override {
    return value <= INT64_MAX ? store(static_cast<int64_t>(value)) : store(UnsupportedJsonValue());
  }
  bool number_float(double, const std::string&) override { return store(UnsupportedJsonValue()); }
  bool string(std::string& value) override {
    if (wanted_ && depth_ == 1) return store(std::move(value));
    return begun();
  }
  bool binary(nlohmann::json::binary_t&) override { return refuse("got binary data; expected an object"); }
  bool start_object(size_t) override { return depth_ == 0 ? deeper() : store(UnsupportedJsonValue()) && deeper(); }
  bool start_array(size_t) override {
    if (depth_ == 0) return refuse("got an array; expected an object");
    return store(UnsupportedJsonValue()) && deeper();
  }
  bool end_object() override { return --depth_ >= 0; }
  bool end_array() override { return --depth_ >= 0; }
  bool key(std::string& name) override {
    if (depth_ != 1) return true;
    if (seen_.size() < kKeysInMessages) seen_.push_back(name.substr(0, 40));
    auto found = std::find(keys_.begin(), keys_.end(), name);
    wanted_ = found == keys_.end() ? nullptr : &fields_[static_cast<size_t>(found - keys_.begin())];
    if (!wanted_) return true;
    auto index = static_cast<size_t>(found - keys_.begin());
    if (given_[index]) return refuse(fmt::format("it has the key \"{}\" twice", name));
    given_[index] = true;
    return true;
  }
  bool parse_error(size_t position, const std::string&, const nlohmann::json::exception& error) override {
    // nlohmann's text is "[json.exception.parse_error.101] parse error at line 1, column 7: REASON"; this keeps REASON.
    std::string text = error.what();
    size_t colon = text.find(": ");
    reason_ =
        fmt::format("invalid JSON at column {}: {}", position, colon == text.npos ? text : text.substr(colon + 2));
    return false;
  }

  const std::string& reason() const { return reason_; }

 private:
  template <typename Value>
  bool store(Value value) {
    if (depth_ == 0) return refuse("got a value; expected an object");
    if (depth_ == 1 && wanted_) {
      *wanted_ = std::move(value);
      wanted_ = nullptr;
    }
    return true;
  }
  bool begun() { return depth_ > 0 || refuse("got a value; expected an object"); }
  bool deeper() {
    return ++depth_ <= kMaxJsonDepth || refuse(fmt::format("it is nested deeper than {} levels", kMaxJsonDepth));
  }
  bool refuse(std::string why) {
    reason_ = std::move(why);
    return false;
  }

  const std::vector<std::string>& keys_;
  std::vector<JsonField>& fields_;
  std::vector<bool>& given_;
  std::vector<std::string>& seen_;
  JsonField* wanted_ = nullptr;
  int depth_ = 0;
  std::string reason_;
};

}  // namespace

LineReader::LineReader(std::unique_ptr<ByteStream> stream, std::string name, size_t max_line_bytes)
    : stream_(std::move(stream)), name_(std::move(name)), max_line_bytes_(max_line_bytes) {}

void LineReader::seek(uint64_t offset, uint64_t number) {
  stream_->skip(offset);
  offset_ = offset;
  number_ = number - 1;
}

std::string LineReader::location() const {
  return fmt::format("{}, line {}", name_, number_);
}

bool LineReader::next(std::string_view& line) {
  for (size_t searched = at_;;) {
    size_t end = buffer_.find('\n', searched);
    if (end == buffer_.npos && !ended_) {
      if (buffer_.size() - at_ > max_line_bytes_) {
        ++number_;
        throw IoError(fmt::format("{} is longer than {} bytes", location(), max_line_bytes_));
      }
      buffer_.erase(0, at_);
      at_ = 0;
      searched = buffer_.size();
      buffer_.resize(searched + kChunkBytes);
      size_t got = stream_->read(std::span(buffer_).subspan(searched));
      ended_ = got < kChunkBytes;
      buffer_.resize(searched + got);
      continue;
    }
    if (end == buffer_.npos && at_ == buffer_.size()) return false;
    size_t after = end == buffer_.npos ? buffer_.size() : end + 1;
    line = std::string_view(buffer_).substr(at_, (end == buffer_.npos ? after : end) - at_);
    offset_ += after - at_;
    ++number_;
    at_ = searched = after;
    if (number_ == 1 && line.starts_with(kByteOrderMark)) line.remove_prefix(kByteOrderMark.size());
    if (line.ends_with('\r')) line.remove_suffix(1);
    if (line.size() > max_line_bytes_)
      throw IoError(fmt::format("{} is longer than {} bytes", location(), max_line_bytes_));
    if (line.find_first_not_of(" \t") != line.npos) return true;
  }
}

JsonLineParser::JsonLineParser(std::vector<std::string> keys) : keys_(std::move(keys)), fields_(keys_.size()) {}

void JsonLineParser::parse(std::string_view line, const std::string& where) {
  for (JsonField& field : fields_) field = std::monostate();
  seen_.clear();
  given_.assign(keys_.size(), false);
  FieldExtractor picker(keys_, fields_, given_, seen_);
  if (!nlohmann::json::sax_parse(line, &picker)) throw IoError(fmt::format("{}: {}", where, picker.reason()));
}

void JsonLineParser::require(size_t key, const std::string& where) const {
  if (!given_[key])
    throw IoError(fmt::format("{} has no \"{}\"; its keys are: {}", where, keys_[key], fmt::join(seen_, ", ")));
}

std::string& JsonLineParser::text(size_t key, const std::string& where) {
  if (auto* text = std::get_if<std::string>(&fields_[key])) return *text;
  require(key, where);
  if (std::holds_alternative<std::monostate>(fields_[key]))
    throw IoError(fmt::format("{}: \"{}\" is null; expected a string", where, keys_[key]));
  throw IoError(fmt::format("{}: \"{}\" is not a string", where, keys_[key]));
}

}  // namespace esp::data
