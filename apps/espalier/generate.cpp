// espalier generate: samples text. espalier eval: how well a model predicts one. Data go to stdout.
#include <cmath>
#include <cstdio>
#include <fstream>
#include <iterator>

#include <fmt/format.h>
#include <nlohmann/json.hpp>

#include "apps/espalier/command.h"
#include "apps/espalier/output_file.h"
#include "esp/base/error.h"
#include "esp/obs/file.h"
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

int run_generate(const GenerateOptions& options) {
  auto loaded = train::load_model(options.checkpoint, {options.threads, {}, options.device});
  std::vector<int32_t> text = data::encode(train::tokenizer_of(*loaded), options.prompt);
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

std::vector<int32_t> read_ids(const std::string& path) {
  std::ifstream file(path);
  if (!file) throw IoError(fmt::format("{}: cannot be opened", path));
  std::vector<int32_t> ids{std::istream_iterator<int32_t>(file), {}};
  if (!file.eof()) throw IoError(fmt::format("{}: token ids in decimal, separated by white space, are wanted", path));
  return ids;
}

int run_eval(const EvalOptions& options) {
  if (options.text.empty() == options.ids.empty()) throw UsageError("give either --text FILE or --ids FILE");
  auto loaded = train::load_model(options.checkpoint, {options.threads, {}, options.device});
  const std::vector<int32_t> tokens =
      options.text.empty()
          ? read_ids(options.ids)
          : data::encode(train::tokenizer_of(*loaded), obs::read_whole_file(options.text, kMaxTextBytes));
  const std::string& file = options.text.empty() ? options.ids : options.text;
  for (int32_t id : tokens)
    if (id < 0 || id >= loaded->config.model.vocab)
      throw IoError(
          fmt::format("{}: token id {} is outside the model's vocabulary of {}", file, id, loaded->config.model.vocab));
  if (tokens.size() < 2)
    throw IoError(fmt::format("{}: {} tokens; at least two are wanted, the second is predicted", file, tokens.size()));
  const train::TextLoss result = train::text_loss(*loaded, tokens);
  const std::string objective = train::objective_name(loaded->config);
  fmt::print("loss {:.6f}  perplexity {:.4f}  tokens {}{}\n", result.loss, std::exp(result.loss),
             result.token_losses.size(), objective == "next_token" ? "" : "  objective " + objective);
  if (!options.json.empty()) {
    const Json json = {{"loss", result.loss},
                       {"perplexity", std::exp(result.loss)},
                       {"tokens", result.token_losses.size()},
                       {"objective", objective},
                       {"token_losses", result.token_losses}};
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
  app.add_option("--text", o->text, "a text file").type_name("FILE");
  app.add_option("--ids", o->ids, "a file of token ids").type_name("FILE");
  app.add_option("--json", o->json, "loss, perplexity, tokens, token_losses, objective").type_name("FILE");
  app.add_option("--threads", o->threads, "0: the cores there are").show_default().non_negative();
  app.add_option("--device", o->device, "cpu or cuda").show_default();
}

}  // namespace esp::app
