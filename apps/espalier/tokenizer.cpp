// espalier tokenizer train|encode|decode: learns vocabularies, and converts text to token ids and back.
#include <unistd.h>

#include <charconv>
#include <chrono>
#include <filesystem>
#include <string>
#include <thread>
#include <vector>

#include <fmt/format.h>
#include <fmt/ranges.h>

#include "apps/espalier/command.h"
#include "apps/espalier/machine.h"
#include "apps/espalier/output_file.h"
#include "apps/espalier/terminal.h"
#include "esp/base/error.h"
#include "esp/base/table.h"
#include "esp/data/content_type.h"
#include "esp/data/tokenizer/bpe_train.h"
#include "esp/data/tokenizer/byte_bpe.h"
#include "esp/data/tokenizer/tokenizer.h"

namespace esp::app {
namespace {

std::string read_descriptor(int fd) {
  std::string text;
  char buffer[1 << 16];
  for (;;) {
    ssize_t got = ::read(fd, buffer, sizeof buffer);
    if (got < 0 && errno == EINTR) continue;
    if (got < 0) throw IoError("cannot read standard input: " + errno_text(errno));
    if (got == 0) return text;
    text.append(buffer, static_cast<size_t>(got));
  }
}

// Reads the files in order, or standard input if there are none. A file must be text; standard input may be any bytes.
// If `null`, zero bytes separate texts and are removed.
std::vector<std::string> read_inputs(const std::vector<std::string>& files, bool null) {
  std::vector<std::string> texts;
  if (files.empty()) texts.push_back(read_descriptor(STDIN_FILENO));
  for (const std::string& file : files) {
    texts.push_back(file == "-" ? read_descriptor(STDIN_FILENO) : data::read_text_file(file, SIZE_MAX / 4, null));
    if (!null || file == "-") continue;
    std::string text = texts.back();
    std::erase(text, '\0');
    data::require_text(data::detect_content_type_of_bytes(text, file), file);
  }
  return texts;
}

template <typename Visit>
void for_each_record(std::string_view text, char separator, Visit&& visit) {
  for (size_t at = 0; at < text.size();) {
    size_t end = std::min(text.find(separator, at), text.size());
    visit(text.substr(at, end - at));
    at = end + 1;
  }
}

void put(std::string& out) {
  if (!out.empty() && std::fwrite(out.data(), 1, out.size(), stdout) != out.size())
    throw IoError("cannot write to standard output: " + errno_text(errno));
  out.clear();
}

std::string pattern_names() {
  return fmt::format("{}", fmt::join(names_of(data::split_patterns()), "|"));
}

struct TrainOptions {
  std::vector<std::string> files, special;
  std::string output, pattern = "gpt2", text_key = "text";
  data::BpeTrainOptions bpe;
};

int run_train(const TrainOptions& options) {
  data::BpeTrainOptions bpe = options.bpe;
  bpe.pattern = data::find_split_pattern(options.pattern).pattern;
  if (!options.special.empty()) bpe.special = options.special;
  for (size_t i = 0; i < bpe.special.size(); ++i)
    if (bpe.special[i].empty() || std::count(bpe.special.begin(), bpe.special.end(), bpe.special[i]) > 1)
      throw UsageError(fmt::format("--special \"{}\": expected non-empty names, each once", bpe.special[i]));
  if (bpe.threads == 0) bpe.threads = static_cast<int>(usable_cores());
  data::BpeTrainer trainer(bpe);
  auto begun = std::chrono::steady_clock::now();
  auto seconds = [&] { return std::chrono::duration<double>(std::chrono::steady_clock::now() - begun).count(); };
  const std::vector<data::Input> inputs = data::find_inputs(options.files, "auto", make_log());
  for (const data::Input& input : inputs)
    if (!data::holds_text(input.kind))
      throw UsageError(
          fmt::format("{}: got a file of tokens; expected text, from which a vocabulary can be learned", input.path));
  for (const data::Input& input : inputs) check_not_an_input("--output", options.output, {&input.path, 1});
  check_output_file("--output", options.output);
  trainer.add_inputs(inputs, options.text_key);
  bool live = ::isatty(STDERR_FILENO) == 1;
  auto tokenizer = trainer.train([&](int32_t size) {
    if (live) fmt::print(stderr, "\r{} of {} tokens", size, bpe.vocab_size);
  });
  if (live) fmt::print(stderr, "\r{:<40}\r", "");
  write_file(options.output, tokenizer->to_json());
  fmt::print(stderr, "{} tokens from {} bytes in {:.1f} s: {}\n", tokenizer->vocab_size(), trainer.bytes(), seconds(),
             options.output);
  if (tokenizer->vocab_size() < bpe.vocab_size)
    fmt::print(stderr, "fewer than the requested {}: no remaining pair occurs {} times\n", bpe.vocab_size,
               bpe.min_count);
  if (trainer.dropped_words() > 0)
    fmt::print(stderr,
               "dropped {} occurrences of rare words: the limit of distinct words was reached. Increase --max-words to "
               "keep them\n",
               trainer.dropped_words());
  return 0;
}

struct EncodeOptions {
  std::string tokenizer, pattern;
  std::vector<std::string> files;
  bool ids = false, count = false, pieces = false, lines = false, null = false, ordinary = false;
  bool add_special_tokens = false;
};

void append_pieces(std::string& out, const data::Tokenizer& tokenizer, const std::vector<int32_t>& ids) {
  for (size_t i = 0; i < ids.size(); ++i) {
    if (i > 0) out += '|';
    out += tokenizer.decode({&ids[i], 1});
  }
  out += '\n';
}

int run_encode(const EncodeOptions& options) {
  auto tokenizer = data::load_tokenizer(options.tokenizer, options.pattern);
  std::string out;
  std::vector<int32_t> ids;
  uint64_t bytes = 0, tokens = 0, records = 0;
  auto encode = [&](std::string_view text) {
    ids.clear();
    if (options.add_special_tokens) ids = tokenizer->text_template().before;
    if (options.ordinary)
      tokenizer->encode_ordinary(text, ids);
    else
      tokenizer->encode(text, ids);
    if (options.add_special_tokens) {
      const std::vector<int32_t>& after = tokenizer->text_template().after;
      ids.insert(ids.end(), after.begin(), after.end());
    }
    bytes += text.size();
    tokens += ids.size();
    ++records;
    if (options.count) return;
    if (options.pieces) return append_pieces(out, *tokenizer, ids);
    for (size_t i = 0; i < ids.size(); ++i) {
      if (i > 0) out += ' ';
      fmt::format_int number(ids[i]);
      out.append(number.data(), number.size());
    }
    out += '\n';
    if (out.size() > (1 << 20)) put(out);
  };
  for (const std::string& text : read_inputs(options.files, options.null)) {
    if (options.lines || options.null)
      for_each_record(text, options.null ? '\0' : '\n', encode);
    else
      encode(text);
  }
  put(out);
  if (options.count)
    fmt::print("{} tokens, {} bytes, {} {}, {:.3f} bytes per token\n", tokens, bytes, records,
               options.lines || options.null ? "records" : "texts",
               tokens ? static_cast<double>(bytes) / static_cast<double>(tokens) : 0.0);
  return 0;
}

struct DecodeOptions {
  std::string tokenizer, ids;
  std::vector<std::string> files;
  bool lines = false, null = false;
};

// Parses token ids separated by spaces, commas or newlines.
std::vector<int32_t> parse_ids(std::string_view text) {
  std::vector<int32_t> ids;
  auto between = [](char c) { return c == ' ' || c == ',' || c == '\n' || c == '\t' || c == '\r'; };
  for (size_t at = 0; at < text.size();) {
    if (between(text[at])) {
      ++at;
      continue;
    }
    size_t end = at;
    while (end < text.size() && !between(text[end])) ++end;
    int32_t id = 0;
    auto parsed = std::from_chars(text.data() + at, text.data() + end, id);
    if (parsed.ec != std::errc() || parsed.ptr != text.data() + end)
      throw UsageError(fmt::format("tokenizer decode: got \"{}\"; expected a decimal token id",
                                   text.substr(at, std::min<size_t>(end - at, 40))));
    ids.push_back(id);
    at = end;
  }
  return ids;
}

int run_decode(const DecodeOptions& options) {
  auto tokenizer = data::load_tokenizer(options.tokenizer);
  std::string out;
  auto decode = [&](std::string_view text) {
    out += tokenizer->decode(parse_ids(text));
    if (options.lines) out += '\n';
    if (options.null) out += '\0';
    if (out.size() > (1 << 20)) put(out);
  };
  if (!options.ids.empty() && !options.files.empty())
    throw UsageError("tokenizer decode: got --ids and files; expected only one of them");
  std::vector<std::string> texts =
      options.ids.empty() ? read_inputs(options.files, false) : std::vector<std::string>{options.ids};
  for (const std::string& text : texts) {
    if (options.lines || options.null)
      for_each_record(text, '\n', decode);
    else
      decode(text);
  }
  put(out);
  return 0;
}

constexpr std::string_view kTokenizerKinds =
    "A tokenizer is \"byte\", a tokenizer.json, a .tiktoken or .model file, a vocab.txt, or a folder with one of them\n"
    "or with vocab.json and merges.txt.";

void define_train(const Arguments& app, SelectedCommand& chosen) {
  auto o = bind_options<TrainOptions>(app, chosen, run_train);
  app.add_option("files", o->files, "text, jsonl, JSON arrays, CSV or TSV, also .gz and .zst; files, folders or globs")
      .type_name("PATH")
      .required();
  app.add_option("-v,--vocab", o->bpe.vocab_size, "vocabulary size, including special tokens and the 256 bytes")
      .type_name("N")
      .required();
  app.add_option("-o,--output", o->output, "output file; - is stdout").type_name("tokenizer.json").required();
  app.add_option("--text-key", o->text_key, "key or column of the text in a record [text]").type_name("KEY");
  app.add_option("--pattern", o->pattern, "split pattern [gpt2]").type_name(pattern_names());
  app.add_option("--special", o->special, "special tokens, first in the vocabulary [<|endoftext|>]").type_name("NAME");
  app.add_option("--min-count", o->bpe.min_count, "minimum count of a merged pair [2]").type_name("N").positive();
  app.add_option("--max-words", o->bpe.max_words, "maximum number of distinct words in memory [4194304]")
      .type_name("N")
      .positive();
  o->bpe.threads = 0;
  app.add_option("--threads", o->bpe.threads, "threads [all cores]").type_name("N");
  app.footer(
      "The result depends on the text and these options, not on the number of threads. The Hugging Face package\n"
      "`tokenizers` can load it.");
}

void define_encode(const Arguments& app, SelectedCommand& chosen) {
  auto o = bind_options<EncodeOptions>(app, chosen, run_encode);
  app.add_option("files", o->files, "text [standard input]").type_name("FILE");
  app.add_option("-t,--tokenizer", o->tokenizer, "tokenizer to use").type_name("PATH").required();
  const Argument ids = app.add_flag("--ids", o->ids, "print ids (default)");
  const Argument count = app.add_flag("--count", o->count, "print the number of ids").excludes(ids);
  app.add_flag("--pieces", o->pieces, "print the text of each token, separated by |").excludes(ids).excludes(count);
  const Argument lines = app.add_flag("--lines", o->lines, "each line is a separate text");
  app.add_flag("-0,--null", o->null, "each text ends with a zero byte").excludes(lines);
  app.add_flag("--ordinary", o->ordinary, "treat special tokens in the text as plain text");
  app.add_flag("--add-special-tokens", o->add_special_tokens,
               "add BOS, EOS and other template tokens around each text, as generate does");
  app.add_option("--pattern", o->pattern, "split pattern, for a .tiktoken file without one").type_name(pattern_names());
  app.footer(std::string(kTokenizerKinds));
}

void define_decode(const Arguments& app, SelectedCommand& chosen) {
  auto o = bind_options<DecodeOptions>(app, chosen, run_decode);
  app.add_option("files", o->files, "ids [standard input]").type_name("FILE");
  app.add_option("-t,--tokenizer", o->tokenizer, "tokenizer to use").type_name("PATH").required();
  app.add_option("--ids", o->ids, "ids, separated by commas or spaces").type_name("LIST");
  const Argument lines = app.add_flag("--lines", o->lines, "each line is a separate text");
  app.add_flag("-0,--null", o->null, "each line is a separate text; end each output text with a zero byte")
      .excludes(lines);
  app.footer(std::string(kTokenizerKinds));
}

constexpr Command kTokenizerCommands[] = {
    {"train", "learn a byte-level BPE from text", define_train},
    {"encode", "convert text to ids", define_encode},
    {"decode", "convert ids to text", define_decode},
};

}  // namespace

void define_tokenizer(const Arguments& app, SelectedCommand& chosen) {
  define_commands(app, kTokenizerCommands, chosen);
  app.require_subcommand(0, 1);
}

}  // namespace esp::app
