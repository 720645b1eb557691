// Streaming (SAX) reader of tokenizer.json and vocab.json: a vocabulary of 200,000 tokens never becomes a JSON tree.
#include <unordered_set>

#include <fmt/format.h>

#include "esp/base/error.h"
#include "esp/data/tokenizer/tokenizer_json.h"

namespace esp::data {
namespace {

constexpr size_t kMaxKeys = 4096;  // keys of one object outside the vocabulary

class TokenizerFileReader : public nlohmann::json_sax<Json> {
 public:
  // vocab_only: the text is only the vocabulary (vocab.json).
  explicit TokenizerFileReader(TokenizerFile& file, bool vocab_only) : file_(file), vocab_only_(vocab_only) {}
  std::string problem;

  bool null() override { return value(Json()); }
  bool boolean(bool v) override { return value(Json(v)); }
  bool number_integer(number_integer_t v) override { return number(Json(v), static_cast<double>(v)); }
  bool number_unsigned(number_unsigned_t v) override { return number(Json(v), static_cast<double>(v)); }
  bool number_float(number_float_t v, const string_t&) override { return number(Json(v), v); }
  bool binary(binary_t&) override { return false; }

  bool string(string_t& v) override {
    if (list_ == List::none) return value(Json(std::move(v)));
    if (list_ == List::merges && inside_ == 1) return merge_line(v);
    if ((list_ == List::merges || list_ == List::scored) && inside_ == 2) {
      item_strings_.push_back(std::move(v));
      return item_strings_.size() <= 2 || fail("has a merge of more than two parts");
    }
    return fail(fmt::format("has the string \"{}\" as a value in the vocabulary; expected {}", v,
                            list_ == List::scored ? "[text, score]" : "a number (id)"));
  }

  bool key(string_t& name) override {
    if (list_ == List::vocab) {
      if (!seen_.insert(name).second) return fail(fmt::format("has the token \"{}\" twice", name));
      key_ = std::move(name);
      return true;
    }
    if (list_ != List::none) return fail("has an object inside its vocabulary or merges");
    Open& object = stack_.back();
    if (object.keys.size() >= kMaxKeys) return fail(fmt::format("has an object of more than {} keys", kMaxKeys));
    if (!object.keys.insert(name).second) return fail(fmt::format("has the key \"{}\" twice in one object", name));
    key_ = std::move(name);
    return true;
  }

  bool start_object(size_t) override {
    if (list_ != List::none) return fail("has an object inside its vocabulary or merges");
    if (vocab_only_ || at_list("vocab")) return begin(List::vocab);
    return open(Json::object());
  }
  bool end_object() override { return end(); }

  bool start_array(size_t) override {
    if (list_ == List::none) {
      if (vocab_only_) return fail("is a list, not an object from token to id");
      if (at_list("vocab")) return begin(List::scored);
      if (at_list("merges")) return begin(List::merges);
      return open(Json::array());
    }
    if (list_ == List::vocab || inside_ != 1) return fail("has a list where a token or a merge was expected");
    inside_ = 2;
    item_strings_.clear();
    item_scored_ = false;
    return true;
  }
  bool end_array() override {
    if (inside_ != 2) return end();
    inside_ = 1;
    if (list_ == List::merges) {
      if (item_strings_.size() != 2) return fail("has a merge of other than two parts");
      file_.merges.emplace_back(std::move(item_strings_[0]), std::move(item_strings_[1]));
    } else {
      if (item_strings_.size() != 1 || !item_scored_) return fail("has a piece that is not [text, score]");
      file_.scored.emplace_back(std::move(item_strings_[0]), score_);
    }
    return true;
  }

  bool parse_error(size_t at, const std::string&, const nlohmann::detail::exception& error) override {
    return fail(fmt::format("is not JSON at byte {}: {}", at, error.what()));
  }

 private:
  enum class List { none, vocab, scored, merges };
  // An array or object that is still being read.
  struct Open {
    Json* value;
    // for duplicate checks; searching the object itself would take quadratic time
    std::unordered_set<std::string> keys;
  };

  bool fail(std::string text) {
    if (problem.empty()) problem = std::move(text);
    return false;
  }
  bool at_list(std::string_view name) const { return stack_.size() == 2 && key_ == name && model_depth_ == 2; }
  bool begin(List list) {
    list_ = list;
    inside_ = 1;
    return true;
  }
  bool end() {
    if (list_ != List::none) {
      list_ = List::none;
      inside_ = 0;
      seen_.clear();
      return true;
    }
    if (stack_.size() == model_depth_) model_depth_ = 0;
    stack_.pop_back();
    return true;
  }

  bool open(Json container) {
    if (stack_.size() >= kMaxJsonDepth) return fail(fmt::format("is nested deeper than {} levels", kMaxJsonDepth));
    bool is_model = stack_.size() == 1 && key_ == "model" && stack_.back().value->is_object();
    Json* place = put(std::move(container));
    stack_.push_back({place, {}});
    if (is_model) model_depth_ = stack_.size();
    return true;
  }
  Json* put(Json json) {
    if (stack_.empty()) {
      file_.rest = std::move(json);
      return &file_.rest;
    }
    Json& parent = *stack_.back().value;
    if (parent.is_array()) {
      parent.push_back(std::move(json));
      return &parent.back();
    }
    return &parent.get_ref<Json::object_t&>().emplace_back(key_, std::move(json)).second;
  }
  bool value(Json json) {
    if (list_ != List::none || vocab_only_) return fail("has a value that is neither a token nor a merge");
    put(std::move(json));
    return true;
  }
  bool number(Json json, double v) {
    if (list_ == List::none) return value(std::move(json));
    if (list_ == List::scored && inside_ == 2 && !item_scored_) {
      item_scored_ = true;
      score_ = v;
      return true;
    }
    if (list_ != List::vocab) return fail("has a number where a merge was expected");
    if (!(v >= 0 && v < 2147483647.0) || v != static_cast<double>(static_cast<int32_t>(v)))
      return fail(fmt::format("gives the token \"{}\" the id {}", key_, json.dump()));
    file_.vocab.emplace_back(key_, static_cast<int32_t>(v));
    return true;
  }
  bool merge_line(const std::string& line) {
    size_t space = line.find(' ');
    if (space == line.npos || line.find(' ', space + 1) != line.npos)
      return fail(fmt::format("has the merge \"{}\", which is not two parts with a space between", line));
    file_.merges.emplace_back(line.substr(0, space), line.substr(space + 1));
    return true;
  }

  TokenizerFile& file_;
  bool vocab_only_;
  std::vector<Open> stack_;
  std::string key_;
  size_t model_depth_ = 0;
  List list_ = List::none;
  int inside_ = 0;
  std::unordered_set<std::string> seen_;
  std::vector<std::string> item_strings_;
  bool item_scored_ = false;
  double score_ = 0;
};

void read(std::string_view text, std::string_view what, TokenizerFile& file, bool vocab_only) {
  if (text.size() > kMaxJsonBytes)
    throw IoError(fmt::format("{} has {} bytes; expected at most {}", what, text.size(), kMaxJsonBytes));
  TokenizerFileReader reader(file, vocab_only);
  if (!Json::sax_parse(text, &reader)) throw IoError(fmt::format("{} {}", what, reader.problem));
}

}  // namespace

TokenizerFile parse_tokenizer_file(std::string_view text, std::string_view what) {
  TokenizerFile file;
  read(text, what, file, false);
  if (!file.rest.is_object()) throw IoError(fmt::format("{} is not a JSON object", what));
  return file;
}

std::vector<std::pair<std::string, int32_t>> parse_vocab_json(std::string_view text, std::string_view what) {
  TokenizerFile file;
  read(text, what, file, true);
  return std::move(file.vocab);
}

}  // namespace esp::data
