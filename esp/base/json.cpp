#include "esp/base/json.h"

#include <string>
#include <string_view>
#include <unordered_set>
#include <utility>
#include <vector>

#include <fmt/format.h>
#include <nlohmann/json.hpp>

#include "esp/base/error.h"

namespace esp {
namespace {

// Builds the value in one pass and rejects two kinds of input that the library accepts: deep nesting and duplicate
// keys. The library would search an object linearly for every key; here a hash set finds duplicates, so that parsing
// takes linear time.
class StrictBuilder final : public nlohmann::json_sax<Json> {
 public:
  Json root;
  std::string problem;

  bool null() override { return add(nullptr); }
  bool boolean(bool value) override { return add(value); }
  bool number_integer(number_integer_t value) override { return add(value); }
  bool number_unsigned(number_unsigned_t value) override { return add(value); }
  bool number_float(number_float_t value, const string_t&) override { return add(value); }
  bool string(string_t& value) override { return add(std::move(value)); }
  bool binary(binary_t&) override { return false; }  // never called: JSON text has no binary values
  bool start_object(size_t) override { return open(Json::object()); }
  bool start_array(size_t) override { return open(Json::array()); }
  bool end_object() override { return close(); }
  bool end_array() override { return close(); }
  bool key(string_t& name) override {
    Open& object = open_.back();
    if (!object.keys.insert(name).second) {
      problem = fmt::format("has the key \"{}\" twice in one object", name);
      return false;
    }
    object.key = std::move(name);
    return true;
  }
  bool parse_error(size_t at, const std::string&, const nlohmann::detail::exception& error) override {
    std::string_view why = error.what();  // text "[json.exception.NAME] …"; the part in brackets is removed
    if (const size_t end = why.find("] "); why.starts_with('[') && end != why.npos) why.remove_prefix(end + 2);
    problem = fmt::format("is not JSON at byte {}: {}", at, why);
    return false;
  }

 private:
  // An array or object that is still being parsed. Meanwhile its parent gets no further element, so `value` stays
  // valid.
  struct Open {
    Json* value;
    std::string key;  // if an object: key of its next element
    std::unordered_set<std::string> keys;
  };

  bool add(Json value) {
    place(std::move(value));
    return true;
  }
  Json* place(Json value) {
    if (open_.empty()) return &(root = std::move(value));
    Open& parent = open_.back();
    if (parent.value->is_array()) {
      auto& array = parent.value->get_ref<Json::array_t&>();
      return &array.emplace_back(std::move(value));
    }
    auto& object = parent.value->get_ref<Json::object_t&>();
    return &object.emplace_back(std::move(parent.key), std::move(value)).second;
  }
  bool open(Json empty) {
    if (open_.size() == kMaxJsonDepth) {
      problem = fmt::format("is nested deeper than {} levels", kMaxJsonDepth);
      return false;
    }
    open_.push_back({place(std::move(empty)), {}, {}});
    return true;
  }
  bool close() {
    open_.pop_back();
    return true;
  }

  std::vector<Open> open_;
};

}  // namespace

Json parse_json(std::string_view text, std::string_view what, size_t max_bytes) {
  if (text.size() > max_bytes)
    throw IoError(fmt::format("{}: got {} bytes; expected at most {}", what, text.size(), max_bytes));
  if (text.find_first_not_of(" \t\r\n") == text.npos) throw IoError(fmt::format("{} is empty; expected JSON", what));
  StrictBuilder builder;
  if (!Json::sax_parse(text, &builder)) throw IoError(fmt::format("{} {}", what, builder.problem));
  return std::move(builder.root);
}

}  // namespace esp
