#include "esp/base/json.h"

#include <set>
#include <string>
#include <vector>

#include <fmt/format.h>
#include <nlohmann/json.hpp>

#include "esp/base/error.h"

namespace esp {
namespace {

// Looks only for what the library's own parser lets pass: depth and duplicate keys.
struct Strict : nlohmann::json_sax<Json> {
  std::string problem;
  std::vector<std::set<std::string>> keys;
  size_t depth = 0;

  bool open() {
    if (++depth <= kMaxJsonDepth) return true;
    problem = fmt::format("is nested deeper than {} levels", kMaxJsonDepth);
    return false;
  }
  bool null() override { return true; }
  bool boolean(bool) override { return true; }
  bool number_integer(number_integer_t) override { return true; }
  bool number_unsigned(number_unsigned_t) override { return true; }
  bool number_float(number_float_t, const string_t&) override { return true; }
  bool string(string_t&) override { return true; }
  bool binary(binary_t&) override { return true; }
  bool start_object(size_t) override {
    keys.emplace_back();
    return open();
  }
  bool key(string_t& name) override {
    if (keys.back().insert(name).second) return true;
    problem = fmt::format("has the key \"{}\" twice in one object", name);
    return false;
  }
  bool end_object() override {
    keys.pop_back();
    --depth;
    return true;
  }
  bool start_array(size_t) override { return open(); }
  bool end_array() override {
    --depth;
    return true;
  }
  bool parse_error(size_t at, const std::string&, const nlohmann::detail::exception& error) override {
    problem = fmt::format("is not JSON at byte {}: {}", at, error.what());
    return false;
  }
};

}  // namespace

Json parse_json(std::string_view text, std::string_view what, size_t max_bytes) {
  if (text.size() > max_bytes)
    throw IoError(fmt::format("{} has {} bytes; at most {} are read", what, text.size(), max_bytes));
  Strict strict;
  if (!Json::sax_parse(text, &strict)) throw IoError(fmt::format("{} {}", what, strict.problem));
  return Json::parse(text);
}

}  // namespace esp
