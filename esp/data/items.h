// Item data sets: a text with a label, or a pair of texts, one per record. All items are tokenised into memory.
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "esp/base/log.h"
#include "esp/data/tokenizer/tokenizer.h"

namespace esp::data {

// Immutable after read_items(); thread-safe.
struct Items {
  struct Item {
    std::span<const int32_t> text, target;  // target: empty for labelled texts
    int32_t label;                          // -1 for pairs
  };
  uint64_t size() const { return labels.size(); }
  Item operator[](uint64_t index) const;

  std::vector<int32_t> tokens;  // text and target of every item, concatenated
  std::vector<uint64_t> ends;   // two entries per item: end of its text, end of its target
  std::vector<int32_t> labels;
  std::vector<std::string> classes;  // label names in byte order if labels are strings, otherwise empty
  int32_t num_classes = 0;
};

struct ItemOptions {
  std::vector<std::string> paths = {};       // files: jsonl, JSON array, CSV or TSV; optionally .gz or .zst
  std::string text_key = "text";             // set it to "source" for pairs
  std::string target_key = {};               // set it to "target" for pairs; empty: labelled texts
  std::string label_key = "label";           // its value is an integer >= 0, a boolean or a string
  size_t max_line_bytes = size_t{16} << 20;  // longest record
  uint64_t max_memory_bytes = uint64_t{1} << 30;
};

// Reads and tokenises all items. Throws an IoError that names the file and the line.
Items read_items(const ItemOptions& options, const Tokenizer& tokenizer, const Log& log = {});

}  // namespace esp::data
