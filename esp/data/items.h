// Data made of items: a text with a label, or a pair of texts, one per record, tokenised into memory.
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "esp/base/log.h"
#include "esp/data/tokenizer/tokenizer.h"

namespace esp::data {

// Immutable once read; any thread may look.
struct Items {
  struct Item {
    std::span<const int32_t> text, target;  // target: empty for labelled texts
    int32_t label;                          // -1 for pairs
  };
  uint64_t size() const { return labels.size(); }
  Item operator[](uint64_t index) const;

  std::vector<int32_t> tokens;  // text and target of every item, one after the other
  std::vector<uint64_t> ends;   // two per item: where its text and its target end
  std::vector<int32_t> labels;
  std::vector<std::string> classes;  // names of labels that were written as words, in byte order; else empty
  int32_t num_classes = 0;
};

struct ItemOptions {
  std::vector<std::string> paths = {};       // jsonl, JSON arrays, CSV, TSV; .gz, .zst
  std::string text_key = "text";             // pairs: "source"
  std::string target_key = {};               // pairs: "target"; empty: labelled texts
  std::string label_key = "label";           // an integer from 0, a boolean, or a word
  size_t max_line_bytes = size_t{16} << 20;  // of a record
  uint64_t max_memory_bytes = uint64_t{1} << 30;
};

// IoError names file and line.
Items read_items(const ItemOptions& options, const Tokenizer& tokenizer, const Log& log = {});

}  // namespace esp::data
