// espalier generate: samples text. espalier eval: how well a model predicts one. Data go to stdout.
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
#include "esp/data/content.h"
#include "esp/data/inputs.h"
#include "esp/data/records.h"
#include "esp/train/feed.h"
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

std::unique_ptr<train::LoadedModel> open_model(const std::string& path, int threads, const std::string& device) {
  auto loaded = train::load_model(path, {threads, {}, device});
  for (const std::string& one : loaded->passed_over) make_log().warn("passed over checkpoint {}", one);
  if (!loaded->unknown.empty())
    make_log().warn("{}: left out {} tensors unknown to this {}: {}", path, loaded->unknown.size(),
                    loaded->config.model.arch, fmt::join(loaded->unknown, ", "));
  return loaded;
}

int run_generate(const GenerateOptions& options) {
  auto loaded = open_model(options.checkpoint, options.threads, options.device);
  std::vector<int32_t> text = data::encode_with_template(train::tokenizer_of(*loaded), options.prompt);
  std::fputs(options.prompt.c_str(), stdout);
  if (loaded->model->has_encoder()) std::fputc('\n', stdout);  // what follows answers it
  // A character may take several tokens: what is complete is printed, the rest waits.
  std::vector<int32_t> all;
  size_t printed = 0;
  const auto print = [&](bool last) {
    std::string said = loaded->tokenizer->decode(all);
    size_t end = said.size();
    while (!last && end > printed && (static_cast<unsigned char>(said[end - 1]) & 0x80)) --end;
    std::fwrite(said.data() + printed, 1, end - printed, stdout);
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

// Token ids that are evaluated by themselves: a line of --ids, a record or all of --text.
struct Sequence {
  std::string where;  // "FILE, line 3"
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
      throw IoError(
          fmt::format("{}: got \"{}\"; expected token ids in decimal with spaces between, one sequence per line", where,
                      line.substr(begin, std::min<size_t>(at - begin, 40))));
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

// Rows of a masked or span-corrupted text bring their special tokens themselves.
std::vector<int32_t> encode_text(const train::LoadedModel& loaded, std::string_view text) {
  const data::Tokenizer& tokenizer = train::tokenizer_of(loaded);
  const bool whole = train::objective_name(loaded.config) == "next_token";
  return whole ? data::encode_with_template(tokenizer, text) : data::encode(tokenizer, text);
}

// The texts of a file of records, each by itself.
std::vector<Sequence> read_records(const data::Input& input, const train::LoadedModel& loaded) {
  const auto records = data::open_records(input, {loaded.config.data.text_key}, kMaxTextBytes);
  std::vector<Sequence> sequences;
  for (size_t bytes = 0; records->next();) {
    const std::string& text = records->text(0);
    if ((bytes += text.size()) > kMaxTextBytes)
      throw IoError(
          fmt::format("{}: got more than {} bytes of text; expected at most that", input.path, kMaxTextBytes));
    sequences.push_back({records->where(), encode_text(loaded, text)});
  }
  if (sequences.empty()) throw IoError(fmt::format("{}: got no records; expected some with a text", input.path));
  return sequences;
}

std::vector<Sequence> read_texts(const std::string& path, const train::LoadedModel& loaded) {
  std::error_code error;
  if (std::filesystem::is_regular_file(path, error)) {
    const data::Input input = data::find_inputs({path}, "auto", make_log()).front();
    if (!data::holds_text(input.kind))
      throw IoError(fmt::format("{}: got a file of token ids; expected text. --ids takes ids in decimal", path));
    if (input.kind != data::InputKind::text) return read_records(input, loaded);
  }
  std::string text = data::read_text_file(path, kMaxTextBytes);
  if (text.starts_with(data::kByteOrderMark)) text.erase(0, data::kByteOrderMark.size());
  return {{path, encode_text(loaded, text)}};
}

void check_sequence(const Sequence& sequence, int64_t vocab) {
  for (int32_t id : sequence.ids)
    if (id < 0 || id >= vocab)
      throw IoError(fmt::format("{}: got the token id {}; expected 0 to {}, the model's vocabulary", sequence.where, id,
                                vocab - 1));
  if (sequence.ids.size() < 2)
    throw IoError(fmt::format("{}: got {} token{}; expected at least 2, of which the second is predicted",
                              sequence.where, sequence.ids.size(), sequence.ids.size() == 1 ? "" : "s"));
}

int run_eval(const EvalOptions& options) {
  if (options.text.empty() == options.ids.empty()) throw UsageError("give either --text FILE or --ids FILE");
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
    throw IoError(fmt::format("{}: got no text as long as model.seq_len = {}; expected one, in which tokens are hidden",
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

void define_generate(const Arguments& app, Chosen& chosen) {
  auto o = keep<GenerateOptions>(app, chosen, run_generate);
  app.add_option("--checkpoint", o->checkpoint, "a checkpoint, a run folder or a Hugging Face folder")
      .required()
      .type_name("DIR");
  app.add_option("--prompt", o->prompt, "what the text begins with");
  app.add_option("--tokens", o->tokens, "how many to add").show_default().non_negative();
  app.add_option("--temperature", o->sampling.temperature, "0: always the likeliest").show_default().non_negative();
  app.add_option("--top-k", o->sampling.top_k, "only the K likeliest; 0: all").show_default().non_negative();
  app.add_option("--top-p", o->sampling.top_p, "only the likeliest that reach this probability")
      .show_default()
      .within(0.0, 1.0);
  app.add_option("--seed", o->sampling.seed, "of the choices").show_default();
  app.add_option("--threads", o->threads, "0: the cores there are").show_default().non_negative();
  app.add_option("--device", o->device, "cpu or cuda").show_default();
}

void define_eval(const Arguments& app, Chosen& chosen) {
  auto o = keep<EvalOptions>(app, chosen, run_eval);
  app.add_option("--checkpoint", o->checkpoint, "a checkpoint, a run folder or a Hugging Face folder")
      .required()
      .type_name("DIR");
  app.add_option("--text", o->text, "text, or records of texts (jsonl, JSON, CSV, TSV); also .gz and .zst")
      .type_name("FILE");
  app.add_option("--ids", o->ids, "a file of token ids, one sequence per line").type_name("FILE");
  app.add_option("--json", o->json, "loss, perplexity, tokens, objective, rows, token_losses").type_name("FILE");
  app.add_option("--threads", o->threads, "0: the cores there are").show_default().non_negative();
  app.add_option("--device", o->device, "cpu or cuda").show_default();
}

}  // namespace esp::app
