#include "esp/data/items.h"

#include <algorithm>
#include <map>

#include <fmt/format.h>

#include "esp/base/error.h"
#include "esp/data/inputs.h"
#include "esp/data/records.h"

namespace esp::data {
namespace {

constexpr int64_t kMaxClasses = 1 << 20;

// Encodes the labels of a data set, which are either all numbers or all strings. String labels are numbered in byte
// order after all of them are read, so the result does not depend on the order of the lines.
class LabelEncoder {
 public:
  void add(const JsonField& field, const std::string& key, const std::string& where, Items& items) {
    if (const auto* word = std::get_if<std::string>(&field)) {
      numbered_ = check(items, true, where);
      auto [at, added] = words_.try_emplace(*word, static_cast<int32_t>(words_.size()));
      items.labels.push_back(at->second);
      return;
    }
    int64_t label = -1;
    if (const auto* number = std::get_if<int64_t>(&field)) label = *number;
    if (const auto* flag = std::get_if<bool>(&field)) label = *flag ? 1 : 0;
    if (label < 0 || label >= kMaxClasses)
      throw IoError(fmt::format("{}: \"{}\" must be a class: a word, a boolean or an integer from 0 to {}{}", where,
                                key, kMaxClasses - 1, label > 0 ? fmt::format("; got {}", label) : ""));
    check(items, false, where);
    items.labels.push_back(static_cast<int32_t>(label));
  }

  void finish(Items& items) {
    std::vector<int32_t> renumbered(words_.size());
    for (auto& [word, first_seen] : words_) {
      renumbered[static_cast<size_t>(first_seen)] = static_cast<int32_t>(items.classes.size());
      items.classes.push_back(word);
    }
    if (numbered_)
      for (int32_t& label : items.labels) label = renumbered[static_cast<size_t>(label)];
    int32_t largest = *std::max_element(items.labels.begin(), items.labels.end());
    items.num_classes = largest + 1;
  }

 private:
  bool check(const Items& items, bool word, const std::string& where) const {
    if (!items.labels.empty() && numbered_ != word)
      throw IoError(
          fmt::format("{}: got words as labels on some lines and numbers on others; expected only one kind", where));
    return word;
  }
  std::map<std::string, int32_t> words_;
  bool numbered_ = false;  // labels are strings; they are numbered at the end
};

}  // namespace

Items::Item Items::operator[](uint64_t index) const {
  uint64_t begin = index == 0 ? 0 : ends[2 * index - 1];
  std::span all(tokens);
  return {all.subspan(begin, ends[2 * index] - begin),
          all.subspan(ends[2 * index], ends[2 * index + 1] - ends[2 * index]), labels[index]};
}

Items read_items(const ItemOptions& options, const Tokenizer& tokenizer, const Log& log) {
  const bool pairs = !options.target_key.empty();
  Items items;
  LabelEncoder labels;
  for (const Input& input : find_inputs(options.paths, "records", log)) {
    const auto records =
        open_records(input, {options.text_key, pairs ? options.target_key : options.label_key}, options.max_line_bytes);
    while (records->next()) {
      const std::string where = records->location();
      tokenizer.encode_ordinary(records->text(0), items.tokens);
      items.ends.push_back(items.tokens.size());
      if (pairs) tokenizer.encode_ordinary(records->text(1), items.tokens);
      items.ends.push_back(items.tokens.size());
      if (pairs) {
        items.labels.push_back(-1);
      } else {
        records->require(1);
        labels.add(records->field(1), options.label_key, where, items);
      }
      if (items.tokens.size() * sizeof(int32_t) + items.ends.size() * sizeof(uint64_t) > options.max_memory_bytes)
        throw IoError(fmt::format("{}: the items take more than {} MiB of memory. Split the data set", where,
                                  options.max_memory_bytes >> 20));
    }
  }
  if (items.size() == 0) throw IoError(fmt::format("no items in {}", fmt::join(options.paths, ", ")));
  if (!pairs) labels.finish(items);
  return items;
}

}  // namespace esp::data
