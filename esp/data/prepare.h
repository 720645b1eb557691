// Text to token files: once, in order, with bounded memory, on several threads.
//
// Progress is kept beside the output (OUTPUT.progress.json) and made durable now and then; a run that was killed goes
// on from there and leaves the same bytes as one that was not. When all is done OUTPUT.json tells what was made from
// what; a second run with the same inputs, tokenizer and options then does nothing. A run that fails before there is
// progress to go on from leaves nothing.
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

enum class Separator { none, between, after };  // the end-of-text id: between documents, or after each

struct Prepared {
  uint64_t tokens = 0, documents = 0, text_bytes = 0;
  int64_t max_id = -1;
  std::vector<std::string> outputs = {};
  bool was_there = false;
};

struct PrepareOptions {
  std::vector<Input> inputs = {};  // that hold text
  TextReaderOptions reader = {};
  Separator separator = Separator::after;
  bool allow_special = false;
  bool may_be_empty = false;  // inputs without one token are an IoError otherwise
  int threads = 1;
  uint64_t batch_bytes = uint64_t{8} << 20;               // text that is tokenised at a time
  uint64_t checkpoint_bytes = uint64_t{256} << 20;        // text between two records of progress
  Duration lock_timeout = Duration::zero();               // for another process that makes the same output
  std::function<void(const Prepared&)> on_progress = {};  // after each batch, from the calling thread
};

// Documents into a writer; nothing is kept beside it.
Prepared tokenize(const PrepareOptions& options, const Tokenizer& tokenizer, TokenWriter& writer);
// Into files, with progress. A tokenizer without an end-of-text id separates nothing. `key` is prepare_key() of the
// same where the caller has it already.
Prepared prepare(const PrepareOptions& options, const WriterOptions& writer, const Tokenizer& tokenizer,
                 std::string key = {});

// A name for (inputs, tokenizer, options): path, size and time of each input, and the tokenizer's own files.
std::string prepare_key(const PrepareOptions& options, const WriterOptions& writer, const Tokenizer& tokenizer);
std::string tokenizer_key(const Tokenizer& tokenizer);

}  // namespace esp::data
