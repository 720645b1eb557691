// espalier generate: samples text. espalier eval: computes loss and perplexity of a text. Both write their data to
// stdout.
#include <algorithm>
#include <charconv>
#include <cmath>
#include <cstdio>
#include <filesystem>
#include <numeric>

#include <fmt/format.h>
#include <fmt/ranges.h>
#include <nlohmann/json.hpp>

#include "apps/espalier/command.h"
#include "apps/espalier/output_file.h"
#include "apps/espalier/terminal.h"
#include "esp/base/error.h"
#include "esp/data/content_type.h"
#include "esp/data/inputs.h"
#include "esp/data/records.h"
#include "esp/train/data_pipeline.h"
#include "esp/train/sampling.h"

namespace esp::app {
namespace {

constexpr size_t kMaxTextBytes = size_t{1} << 30;

struct GenerateOptions {
  std::string checkpoint, prompt;
  int64_t tokens = 200;
  int threads = 0;
  std::string device = "cpu";
  train::SamplingOptions sampling;
};

std::unique_ptr<train::TrainedModel> open_model(const std::string& path, int threads, const std::string& device) {
  auto loaded = train::load_model(path, {threads, {}, device});
  for (const std::string& one : loaded->skipped_checkpoints) make_log().warn("skipped checkpoint {}", one);
  if (!loaded->unused_tensors.empty())
    make_log().warn("{}: ignored {} tensors that a {} model does not use: {}", path, loaded->unused_tensors.size(),
                    loaded->config.model.arch, fmt::join(loaded->unused_tensors, ", "));
  return loaded;
}

int run_generate(const GenerateOptions& options) {
  auto loaded = open_model(options.checkpoint, options.threads, options.device);
  std::vector<int32_t> text = data::encode_with_template(train::require_tokenizer(*loaded), options.prompt);
  std::fputs(options.prompt.c_str(), stdout);
  if (loaded->model->has_encoder()) std::fputc('\n', stdout);  // separates the prompt from the decoder's output
  // A character may consist of several tokens. Only complete characters are printed; the rest waits for more tokens.
  std::vector<int32_t> all;
  size_t printed = 0;
  const auto print = [&](bool last) {
    std::string text_so_far = loaded->tokenizer->decode(all);
    size_t end = text_so_far.size();
    while (!last && end > printed && (static_cast<unsigned char>(text_so_far[end - 1]) & 0x80)) --end;
    std::fwrite(text_so_far.data() + printed, 1, end - printed, stdout);
    std::fflush(stdout);
    printed = end;
  };
  train::generate(*loaded, std::move(text), options.tokens, options.sampling, [&](int32_t token) {
    all.push_back(token);
    print(false);
    return std::ferror(stdout) == 0;
  });
  print(true);
  std::fputc('\n', stdout);
  return 0;
}

struct EvalOptions {
  std::string checkpoint, text, ids, json;
  int threads = 0;
  std::string device = "cpu";
};

// One sequence of token ids to evaluate. It comes from a line of --ids, from a record, or from the whole --text.
struct Sequence {
  std::string where;  // source for messages: "FILE, line 3"
  std::vector<int32_t> ids;
};

bool is_between(char c) {
  return c == ' ' || c == '\t' || c == '\r';
}

std::vector<int32_t> parse_ids(std::string_view line, const std::string& where) {
  std::vector<int32_t> ids;
  for (size_t at = 0; at < line.size();) {
    if (is_between(line[at])) {
      ++at;
      continue;
    }
    const size_t begin = at;
    while (at < line.size() && !is_between(line[at])) ++at;
    int32_t id = 0;
    const auto [end, error] = std::from_chars(line.data() + begin, line.data() + at, id);
    if (error != std::errc() || end != line.data() + at)
      throw IoError(fmt::format("{}: got \"{}\"; expected decimal token ids separated by spaces, one sequence per line",
                                where, line.substr(begin, std::min<size_t>(at - begin, 40))));
    ids.push_back(id);
  }
  return ids;
}

std::vector<Sequence> read_ids(const std::string& path) {
  const std::string text = data::read_text_file(path, kMaxTextBytes);
  std::vector<Sequence> sequences;
  size_t number = 0;
  for (size_t at = 0; at < text.size();) {
    const size_t end = std::min(text.find('\n', at), text.size());
    Sequence sequence{fmt::format("{}, line {}", path, ++number), {}};
    sequence.ids = parse_ids(std::string_view(text).substr(at, end - at), sequence.where);
    if (!sequence.ids.empty()) sequences.push_back(std::move(sequence));
    at = end + 1;
  }
  if (sequences.empty()) throw IoError(fmt::format("{}: got no token ids; expected one sequence per line", path));
  return sequences;
}

// Adds special tokens only for next-token models. Masked and span-corrupted rows get theirs when they are built.
std::vector<int32_t> encode_text(const train::TrainedModel& loaded, std::string_view text) {
  const data::Tokenizer& tokenizer = train::require_tokenizer(loaded);
  const bool whole = train::objective_name(loaded.config) == "next_token";
  return whole ? data::encode_with_template(tokenizer, text) : data::encode(tokenizer, text);
}

// Reads a file of records; each record is one sequence.
std::vector<Sequence> read_records(const data::Input& input, const train::TrainedModel& loaded) {
  const auto records = data::open_records(input, {loaded.config.data.text_key}, kMaxTextBytes);
  std::vector<Sequence> sequences;
  for (size_t bytes = 0; records->next();) {
    const std::string& text = records->text(0);
    if ((bytes += text.size()) > kMaxTextBytes)
      throw IoError(fmt::format("{}: got more than {} bytes of text, the limit. Evaluate a smaller file", input.path,
                                kMaxTextBytes));
    sequences.push_back({records->location(), encode_text(loaded, text)});
  }
  if (sequences.empty())
    throw IoError(fmt::format("{}: got no records; expected at least one record with text", input.path));
  return sequences;
}

std::vector<Sequence> read_texts(const std::string& path, const train::TrainedModel& loaded) {
  std::error_code error;
  if (std::filesystem::is_regular_file(path, error)) {
    const data::Input input = data::find_inputs({path}, "auto", make_log()).front();
    if (!data::holds_text(input.kind))
      throw IoError(fmt::format("{}: got a file of token ids; expected text. For decimal ids use --ids", path));
    if (input.kind != data::InputKind::text) return read_records(input, loaded);
  }
  std::string text = data::read_text_file(path, kMaxTextBytes);
  if (text.starts_with(data::kByteOrderMark)) text.erase(0, data::kByteOrderMark.size());
  return {{path, encode_text(loaded, text)}};
}

void check_sequence(const Sequence& sequence, int64_t vocab) {
  for (int32_t id : sequence.ids)
    if (id < 0 || id >= vocab)
      throw IoError(fmt::format("{}: got the token id {}; expected 0 to {}, the ids of the model's vocabulary",
                                sequence.where, id, vocab - 1));
  if (sequence.ids.size() < 2)
    throw IoError(fmt::format("{}: got {} token{}; expected at least 2, because the first token is not predicted",
                              sequence.where, sequence.ids.size(), sequence.ids.size() == 1 ? "" : "s"));
}

int run_eval(const EvalOptions& options) {
  if (options.text.empty() == options.ids.empty())
    throw UsageError(fmt::format("eval: got {}; expected exactly one of --text FILE and --ids FILE",
                                 options.text.empty() ? "neither --text nor --ids" : "both --text and --ids"));
  auto loaded = open_model(options.checkpoint, options.threads, options.device);
  const std::vector<Sequence> sequences =
      options.text.empty() ? read_ids(options.ids) : read_texts(options.text, *loaded);
  for (const Sequence& sequence : sequences) check_sequence(sequence, loaded->config.model.vocab);
  std::vector<double> losses;
  Json rows = Json::array();
  for (const Sequence& sequence : sequences) {
    const train::TextLoss one = train::text_loss(*loaded, sequence.ids);
    losses.insert(losses.end(), one.token_losses.begin(), one.token_losses.end());
    rows.push_back({{"loss", one.loss}, {"tokens", one.token_losses.size()}});
  }
  if (losses.empty())
    throw IoError(
        fmt::format("{}: got only texts shorter than model.seq_len = {}; expected at least one of that "
                    "length, to mask tokens in it",
                    options.text.empty() ? options.ids : options.text, loaded->config.model.seq_len));
  const double loss = std::accumulate(losses.begin(), losses.end(), 0.0) / static_cast<double>(losses.size());
  const std::string objective = train::objective_name(loaded->config);
  fmt::print("loss {:.6f}  perplexity {:.4f}  tokens {}{}{}\n", loss, std::exp(loss), losses.size(),
             options.ids.empty() && sequences.size() == 1 ? "" : fmt::format("  rows {}", sequences.size()),
             objective == "next_token" ? "" : "  objective " + objective);
  if (!options.json.empty()) {
    const Json json = {
        {"loss", loss}, {"perplexity", std::exp(loss)}, {"tokens", losses.size()}, {"objective", objective},
        {"rows", rows}, {"token_losses", losses}};
    write_file(options.json, json.dump(2) + "\n");
  }
  return 0;
}

}  // namespace

void define_generate(const Arguments& app, SelectedCommand& chosen) {
  auto o = bind_options<GenerateOptions>(app, chosen, run_generate);
  app.add_option("--checkpoint", o->checkpoint, "a checkpoint, a run folder or a Hugging Face folder")
      .required()
      .type_name("DIR");
  app.add_option("--prompt", o->prompt, "beginning of the text");
  app.add_option("--tokens", o->tokens, "number of tokens to generate").show_default().non_negative();
  app.add_option("--temperature", o->sampling.temperature, "sampling temperature; 0: greedy")
      .show_default()
      .non_negative();
  app.add_option("--top-k", o->sampling.top_k, "sample from the K most likely tokens; 0: all")
      .show_default()
      .non_negative();
  app.add_option("--top-p", o->sampling.top_p, "sample from the most likely tokens with this total probability")
      .show_default()
      .within(0.0, 1.0);
  app.add_option("--seed", o->sampling.seed, "random seed").show_default();
  app.add_option("--threads", o->threads, "compute threads; 0: all cores").show_default().non_negative();
  app.add_option("--device", o->device, "device to compute on: cpu or cuda").show_default();
}

void define_eval(const Arguments& app, SelectedCommand& chosen) {
  auto o = bind_options<EvalOptions>(app, chosen, run_eval);
  app.add_option("--checkpoint", o->checkpoint, "a checkpoint, a run folder or a Hugging Face folder")
      .required()
      .type_name("DIR");
  app.add_option("--text", o->text, "text, or records of texts (jsonl, JSON, CSV, TSV); also .gz and .zst")
      .type_name("FILE");
  app.add_option("--ids", o->ids, "a file of token ids, one sequence per line").type_name("FILE");
  app.add_option("--json", o->json, "write loss, perplexity, tokens, objective, rows and token_losses as JSON")
      .type_name("FILE");
  app.add_option("--threads", o->threads, "compute threads; 0: all cores").show_default().non_negative();
  app.add_option("--device", o->device, "device to compute on: cpu or cuda").show_default();
}

}  // namespace esp::app
