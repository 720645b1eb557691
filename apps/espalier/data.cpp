// espalier data: tokenises text into files, and describes data files.
#include <unistd.h>

#include <algorithm>
#include <filesystem>
#include <optional>
#include <thread>

#include <fmt/format.h>
#include <nlohmann/json.hpp>

#include "apps/espalier/command.h"
#include "apps/espalier/output_file.h"
#include "apps/espalier/terminal.h"
#include "apps/espalier/text_table.h"
#include "esp/base/clock.h"
#include "esp/base/error.h"
#include "esp/data/inspect.h"
#include "esp/data/prepare.h"

namespace esp::app {
namespace {

struct PrepareOptions {
  std::vector<std::string> inputs;
  std::string output, tokenizer = "byte", format = "bin", type, input_format = "auto", text_key = "text", json;
  uint64_t shard_tokens = 100'000'000, checkpoint_mib = 256;
  int threads = 0;
  bool no_eos = false, allow_special = false;
};

struct InfoOptions {
  std::vector<std::string> inputs;
  std::string type, json;
  bool quick = false;
};

uint64_t total_bytes(const std::vector<data::Input>& inputs) {
  uint64_t bytes = 0;
  for (const data::Input& input : inputs) bytes += std::filesystem::file_size(input.path);
  return bytes;
}

// Progress on a terminal: one line that is updated a few times a second. Prints nothing if the output is a file.
class ProgressLine {
 public:
  explicit ProgressLine(uint64_t input_bytes) : input_bytes_(input_bytes), shown_(isatty(STDERR_FILENO) == 1) {}
  ~ProgressLine() {
    if (drawn_) fmt::print(stderr, "\r\033[K");
  }
  ProgressLine(const ProgressLine&) = delete;
  ProgressLine& operator=(const ProgressLine&) = delete;

  void show(const data::PrepareResult& so_far) {
    if (!shown_ || next_.left() > Duration::zero()) return;
    next_ = Deadline::after_ms(200);
    if (!begun_) begun_ = so_far.text_bytes;  // work that an interrupted earlier process did is not part of the speed
    double seconds = static_cast<double>(now_ns() - begin_ns_) * 1e-9;
    double mib = static_cast<double>(so_far.text_bytes) / (1 << 20);
    fmt::print(stderr, "\r\033[K{:.0f} MiB of text ({:.0f} MiB of files), {} tokens, {:.1f} MiB/s", mib,
               static_cast<double>(input_bytes_) / (1 << 20), so_far.tokens,
               static_cast<double>(so_far.text_bytes - *begun_) / (1 << 20) / std::max(seconds, 1e-3));
    drawn_ = true;
  }

 private:
  uint64_t input_bytes_;
  bool shown_, drawn_ = false;
  int64_t begin_ns_ = now_ns();
  Deadline next_ = Deadline::after_ms(0);
  std::optional<uint64_t> begun_;
};

int run_prepare(const PrepareOptions& command) {
  auto tokenizer = data::load_tokenizer(command.tokenizer);
  data::PrepareOptions options;
  options.inputs = data::find_inputs(command.inputs, command.input_format, make_log());
  for (const data::Input& input : options.inputs)
    if (!data::holds_text(input.kind))
      throw UsageError(
          fmt::format("{}: got a file of tokens; expected text, jsonl, a JSON array, CSV or TSV", input.path));
  if (command.output.empty())
    throw UsageError("--output: got an empty path; expected a file, or the prefix of several files");
  if (command.format == "bin") check_output_file("--output", command.output);
  if (command.text_key != PrepareOptions().text_key &&
      std::all_of(options.inputs.begin(), options.inputs.end(),
                  [](const data::Input& input) { return input.kind == data::InputKind::text; }))
    throw UsageError(fmt::format(
        "--text-key: got {}, but no input has records (.jsonl, .json, .csv, .tsv). Leave it out", command.text_key));
  std::error_code error;
  if (std::filesystem::exists(command.output, error) && !std::filesystem::is_regular_file(command.output, error) &&
      command.format == "bin")
    throw IoError(fmt::format("--output: got {}, a device or pipe; expected a file", command.output));
  for (const data::Input& input : options.inputs)
    for (const char* ending : {"", ".bin", ".idx"})
      check_not_an_input("--output", command.output + ending, {&input.path, 1});
  for (const char* ending : {".txt", ".jsonl", ".json", ".csv", ".tsv", ".gz", ".zst"})
    if (command.output.ends_with(ending))
      throw UsageError(
          fmt::format("--output: got {}; expected a name without {}, because the output is a token file. "
                      "Use for example {}.bin",
                      command.output, ending, command.output));
  if (command.format != "llmc" && command.shard_tokens != PrepareOptions().shard_tokens)
    throw UsageError(fmt::format("--shard-tokens: has no effect with --format {}; expected --format llmc. Leave it out",
                                 command.format));
  options.reader.text_key = command.text_key;
  options.separator = command.no_eos ? data::SeparatorPlacement::none : data::SeparatorPlacement::after;
  options.allow_special = command.allow_special;
  options.threads = command.threads > 0 ? command.threads : static_cast<int>(std::thread::hardware_concurrency());
  options.checkpoint_bytes = std::max<uint64_t>(1, command.checkpoint_mib << 20);
  options.batch_bytes = std::min(options.batch_bytes, options.checkpoint_bytes);
  data::WriterOptions writer;
  writer.format = command.format;
  writer.output = command.output;
  writer.type = command.type.empty() ? data::token_type_for(tokenizer->vocab_size(), command.format)
                                     : data::parse_token_type(command.type);
  writer.shard_tokens = command.shard_tokens;

  data::PrepareResult prepared;
  {
    ProgressLine line(total_bytes(options.inputs));
    options.on_progress = [&](const data::PrepareResult& so_far) { line.show(so_far); };
    prepared = data::prepare(options, writer, *tokenizer);
  }
  const std::string first = prepared.outputs.front(), last = prepared.outputs.back();
  fmt::print("{} {}\n{} tokens of {} as {}, {} documents, {} bytes of text, largest id {}\n",
             prepared.already_complete ? "already there:" : "wrote", first == last ? first : first + " … " + last,
             prepared.tokens, tokenizer->kind(), data::name_of(writer.type), prepared.documents, prepared.text_bytes,
             prepared.max_id);
  if (!command.json.empty()) {
    Json report = {{"outputs", prepared.outputs},
                   {"tokens", prepared.tokens},
                   {"documents", prepared.documents},
                   {"text_bytes", prepared.text_bytes},
                   {"max_id", prepared.max_id},
                   {"type", std::string(data::name_of(writer.type))},
                   {"was_there", prepared.already_complete}};
    write_file(command.json, report.dump(1) + "\n");
  }
  return 0;
}

int run_info(const InfoOptions& command) {
  std::optional<data::TokenType> type;
  if (!command.type.empty()) type = data::parse_token_type(command.type);
  std::vector<Cells> rows;
  Json report = Json::array();
  auto shown = [](const auto& value) { return value ? fmt::to_string(*value) : std::string("-"); };
  for (const data::Input& input : data::find_inputs(command.inputs, "auto", make_log())) {
    data::DataInfo info = data::inspect(input, type, !command.quick);
    rows.push_back({info.path, info.format, info.type.empty() ? "-" : info.type, fmt::to_string(info.bytes),
                    shown(info.tokens), shown(info.documents), shown(info.max_id)});
    Json row = {{"path", info.path}, {"format", info.format}, {"bytes", info.bytes}};
    if (!info.type.empty()) row["type"] = info.type;
    if (info.tokens) row["tokens"] = *info.tokens;
    if (info.documents) row["documents"] = *info.documents;
    if (info.max_id) row["max_id"] = *info.max_id;
    report.push_back(row);
  }
  if (command.json != "-")
    fmt::print("{}", text_table({"path", "format", "type", "bytes", "tokens", "documents", "largest id"}, rows));
  if (!command.json.empty()) write_file(command.json, report.dump(1) + "\n");
  return 0;
}

void define_prepare(const Arguments& app, SelectedCommand& chosen) {
  auto o = bind_options<PrepareOptions>(app, chosen, run_prepare);
  app.add_option("input", o->inputs, "text, jsonl, JSON arrays, CSV or TSV, also .gz and .zst; files, folders or globs")
      .required()
      .type_name("PATH");
  app.add_option("-o,--output", o->output, "output file, or prefix of the output files").required().type_name("PATH");
  app.add_option("--tokenizer", o->tokenizer, "byte, or a tokenizer's file or folder [byte]").type_name("PATH");
  app.add_option("--format", o->format, "output format [bin]").type_name("bin|llmc|megatron");
  app.add_option("--type", o->type, "token type [smallest that fits the vocabulary]").type_name("uint16|uint32|int32");
  app.add_option("--input-format", o->input_format, "input format [by name and content]")
      .type_name("auto|text|jsonl|json|csv|tsv");
  app.add_option("--text-key", o->text_key, "key or column of the text in a record [text]").type_name("KEY");
  app.add_option("--shard-tokens", o->shard_tokens, "tokens of an llm.c shard [100000000]").type_name("N");
  app.add_option("--threads", o->threads, "tokeniser threads; 0: all cores [0]").type_name("N").non_negative();
  app.add_option("--checkpoint-mib", o->checkpoint_mib, "MiB of text between two progress records [256]")
      .type_name("N");
  app.add_flag("--no-eos", o->no_eos, "do not write an end-of-text id after each document");
  app.add_flag("--allow-special", o->allow_special, "encode special tokens in the text as special tokens");
  app.add_option("--json", o->json, "write the result as JSON").type_name("FILE");
  app.footer("An interrupted run resumes when it is started again, and writes the same bytes.");
}

void define_info(const Arguments& app, SelectedCommand& chosen) {
  auto o = bind_options<InfoOptions>(app, chosen, run_info);
  app.add_option("input", o->inputs, "files, folders or globs").required().type_name("PATH");
  app.add_option("--type", o->type, "token type of raw .bin files [from the file beside them, else uint16]")
      .type_name("uint8|uint16|uint32|int32");
  app.add_flag("--quick", o->quick, "read only the headers: no largest id, no number of lines");
  app.add_option("--json", o->json, "write the rows as JSON; - is stdout").type_name("FILE");
}

}  // namespace

void define_data(const Arguments& app, SelectedCommand& chosen) {
  static constexpr Command kVerbs[] = {
      {"prepare", "tokenise text into .bin, llm.c or Megatron files", define_prepare},
      {"info", "describe files: format, type, tokens, documents, largest id", define_info}};
  define_commands(app, kVerbs, chosen);
  app.require_subcommand(0, 1);
}

}  // namespace esp::app
