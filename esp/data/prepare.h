// Tokenises text into token files: in order, once, with bounded memory, on several threads.
//
// Progress is stored beside the output (OUTPUT.progress.json) at intervals. After a killed run, the next run resumes
// from it and writes the same bytes as an uninterrupted run. At the end OUTPUT.json records the inputs, tokenizer and
// options; a second run with the same inputs, tokenizer and options does nothing. A run that fails before its first
// progress record leaves no files.
#pragma once

#include <chrono>
#include <cstdint>
#include <functional>
#include <string>
#include <vector>

#include "esp/base/clock.h"
#include "esp/data/inputs.h"
#include "esp/data/text_reader.h"
#include "esp/data/token_writer.h"
#include "esp/data/tokenizer/tokenizer.h"

namespace esp::data {

// where the end-of-text id is written: between documents, or after each
enum class SeparatorPlacement { none, between, after };

struct PrepareResult {
  uint64_t tokens = 0, documents = 0, text_bytes = 0;
  int64_t max_id = -1;
  std::vector<std::string> outputs = {};
  bool already_complete = false;
};

struct PrepareOptions {
  std::vector<Input> inputs = {};  // text inputs only
  TextReaderOptions reader = {};
  SeparatorPlacement separator = SeparatorPlacement::after;
  bool allow_special = false;
  bool may_be_empty = false;  // true: inputs may have no tokens at all; false: that is an IoError
  int threads = 1;
  uint64_t batch_bytes = uint64_t{8} << 20;         // text tokenised per batch
  uint64_t checkpoint_bytes = uint64_t{256} << 20;  // text between two progress records
  Duration lock_timeout = Duration::zero();         // how long to wait for another process that writes the same output
  std::function<void(const PrepareResult&)> on_progress = {};  // called after each batch on the calling thread
};

// Writes the documents into a writer, without progress records.
PrepareResult tokenize(const PrepareOptions& options, const Tokenizer& tokenizer, TokenWriter& writer);
// Writes files, with progress records. A tokenizer without an end-of-text id writes no separators. `key`: the result of
// prepare_key() for the same arguments, if the caller already has it.
PrepareResult prepare(const PrepareOptions& options, const WriterOptions& writer, const Tokenizer& tokenizer,
                      std::string key = {});

// A key for (inputs, tokenizer, options): path, size and time of each input, and the tokenizer's own files.
std::string prepare_key(const PrepareOptions& options, const WriterOptions& writer, const Tokenizer& tokenizer);
std::string tokenizer_key(const Tokenizer& tokenizer);

}  // namespace esp::data
