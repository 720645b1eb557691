#include "esp/train/feed.h"

#include <algorithm>
#include <optional>

#include <fmt/format.h>
#include <fmt/ranges.h>

#include "esp/base/error.h"
#include "esp/base/table.h"
#include "esp/data/inputs.h"

namespace esp::train {
namespace {

using data::Order;

// How each objective makes training data (Order of the run) and evaluation data (in order, whole).
struct Split {
  bool training;
  Order order;
  uint64_t seed;
};

std::unique_ptr<data::Objective> next_token(const RunConfig& c, const data::TokenSource& source, const Split& split) {
  data::NextTokenOptions o;
  o.T = c.model.seq_len;
  o.seed = split.seed;
  o.order = split.order;
  o.shift = split.training && split.order == Order::shuffled;
  return data::make_next_token(source, o);
}

std::unique_ptr<data::Objective> masked_token(const RunConfig& c, const data::TokenSource& source, const Split& split,
                                              const data::Tokenizer& tokenizer) {
  data::MaskedTokenOptions o;
  o.T = c.model.seq_len;
  o.seed = split.seed;
  o.order = split.order;
  o.rate = c.data.mask_rate;
  o.vocab = tokenizer.vocab_size();
  const data::SpecialTokens& special = tokenizer.special();
  // A tokenizer without [MASK] lends its last id. For bytes that is the end of text, or 0xFF, which UTF-8 never holds.
  o.mask = special.mask ? special.mask : std::optional<int32_t>(tokenizer.vocab_size() - 1);
  o.cls = special.cls;
  o.sep = special.sep;
  o.pad = special.pad;
  return data::make_masked_token(source, o);
}

std::unique_ptr<data::Objective> span_corruption(const RunConfig& c, const data::TokenSource& source,
                                                 const Split& split, const data::Tokenizer& tokenizer) {
  data::SpanCorruptionOptions o;
  o.T = c.model.seq_len;
  o.seed = split.seed;
  o.order = split.order;
  o.rate = c.data.mask_rate;
  o.vocab = static_cast<int32_t>(c.model.vocab);
  o.text_vocab = tokenizer.vocab_size();
  o.eos = tokenizer.special().eos;
  return data::make_span_corruption(source, o);
}

std::unique_ptr<data::Objective> of_tokens(const RunConfig& c, const std::string& name,
                                           const data::Tokenizer& tokenizer, const data::TokenSource& source,
                                           const Split& split) {
  if (name == "masked_token") return masked_token(c, source, split, tokenizer);
  if (name == "span_corruption") return span_corruption(c, source, split, tokenizer);
  return next_token(c, source, split);
}

std::unique_ptr<data::Objective> of_items(const RunConfig& c, const std::string& name, const Feed& feed,
                                          const data::Items& items, const Split& split) {
  const data::SpecialTokens& special = feed.tokenizer->special();
  if (name == "pairs") {
    data::PairOptions o;
    o.T = o.T_decoder = c.model.seq_len;
    o.seed = split.seed;
    o.order = split.order;
    o.eos = special.eos;
    o.pad = special.pad.value_or(0);
    return data::make_pairs(items, o);
  }
  data::ClassificationOptions o;
  o.T = c.model.seq_len;
  o.seed = split.seed;
  o.order = split.order;
  o.cls = special.cls;
  o.sep = special.sep;
  o.pad = special.pad.value_or(0);
  return data::make_classification(items, o);
}

// What is said of files says which key names them.
template <typename F>
auto naming(const std::string& keys, F&& f) {
  try {
    return f();
  } catch (const IoError& error) {
    throw IoError(fmt::format("{}: {}", keys, error.what()));
  } catch (const UsageError& error) {
    throw UsageError(fmt::format("{}: {}", keys, error.what()));
  }
}

data::TokenSource open_tokens(const RunConfig& c, const std::vector<std::string>& paths, const Feed& feed,
                              const Log& log) {
  data::SourceOptions o;
  o.paths = paths;
  o.text_key = c.data.text_key;
  if (!c.data.bin_type.empty()) o.bin_type = data::parse_token_type(c.data.bin_type);
  o.cache_dir = c.data.cache;
  // Fewer rows than the tokenizer has ids (bytes alone, say) are the model's choice, and its to answer for.
  const auto vocab = static_cast<int32_t>(c.model.vocab), ids = feed.tokenizer->vocab_size();
  o.vocab = std::max(vocab, ids);
  data::TokenSource source = data::open_source(o, *feed.tokenizer, log);
  if (vocab >= ids) return source;
  constexpr uint64_t kLookedThrough = uint64_t{1} << 26;  // longer texts are checked as they are read
  if (const int64_t most = source.size() <= kLookedThrough ? source.max_id() : 0; most >= vocab)
    throw UsageError(
        fmt::format("the text has the id {}, outside model.vocab = {}: at least {} is wanted, or 0 for the "
                    "{} of the tokenizer",
                    most, vocab, most + 1, ids));
  source.set_vocab(vocab);
  return source;
}

// The last `fraction` of a source, copied out: small beside what it is taken from.
data::TokenSource hold_out(const data::TokenSource& source, uint64_t count) {
  std::vector<int32_t> tokens(count);
  source.read(source.size() - count, tokens);
  data::TokenSource held;
  held.add(std::move(tokens), "held out");
  return held;
}

data::Items open_items(const RunConfig& c, const std::vector<std::string>& paths, const std::string& name,
                       const Feed& feed) {
  data::ItemOptions o;
  o.paths = paths;
  o.text_key = c.data.text_key;
  o.label_key = c.data.label_key;
  if (name == "pairs") {
    if (o.text_key == "text") o.text_key = "source";
    o.target_key = c.data.target_key;
  }
  return data::read_items(o, *feed.tokenizer);
}

// What a model can be trained for: an encoder and decoder needs a row for each, only BERT looks both ways and
// classifies.
constexpr struct {
  std::string_view name, archs;
} kObjectives[] = {{"next_token", "gpt llama bert"}, {"masked_token", "bert"},
                   {"span_corruption", "t5"},        {"pairs", "t5"},
                   {"classification", "bert"},       {"synthetic", "bert"}};

void check_objective(const ModelSection& model, std::string_view name) {
  auto suits = [&](const auto& row) { return row.archs.find(model.arch) != std::string_view::npos; };
  if (suits(find_row("objective", kObjectives, name))) {
    if (name == "synthetic" && model.classes == 0)
      throw UsageError("data.objective = \"synthetic\" makes rows of two classes: give model.classes = 2");
    return;
  }
  std::vector<std::string_view> fitting;
  for (const auto& row : kObjectives)
    if (suits(row)) fitting.push_back(row.name);
  throw UsageError(fmt::format("data.objective = \"{}\" is not for model.arch = \"{}\": it takes {}", name, model.arch,
                               fmt::join(fitting, ", ")));
}

}  // namespace

std::string objective_name(const RunConfig& config) {
  if (!config.data.objective.empty())
    return std::string(find_row("objective", kObjectives, config.data.objective).name);
  if (config.model.classes > 0) return "classification";
  if (config.model.arch == "bert") return "masked_token";
  return config.model.arch == "t5" ? "span_corruption" : "next_token";
}

namespace {

// The tokenizer, and what it decides about the model.
std::unique_ptr<data::Tokenizer> settle_vocabulary(RunConfig& config, const std::string& objective) {
  auto tokenizer = naming("data.tokenizer (\"byte\", a tokenizer.json or a folder with one)",
                          [&] { return data::load_tokenizer(config.data.tokenizer); });
  if (config.model.vocab == 0) {
    config.model.vocab = tokenizer->vocab_size();
    if (objective == "span_corruption") config.model.vocab += 100;  // sentinels
  }
  if (config.model.vocab < tokenizer->vocab_size() && config.data.tokenizer != "byte")
    throw UsageError(fmt::format("model.vocab = {}: tokenizer {} has {} ids; leave it 0 or give at least that many",
                                 config.model.vocab, config.data.tokenizer, tokenizer->vocab_size()));
  if (config.data.train.empty())
    throw UsageError("data.train is empty: name text, jsonl or .bin files, a folder or a glob");
  return tokenizer;
}

}  // namespace

void check_feed(RunConfig config) {
  const std::string name = objective_name(config);
  check_objective(config.model, name);
  data::parse_order(config.data.order);
  if (name != "synthetic") {
    settle_vocabulary(config, name);
    const char* format = name == "pairs" || name == "classification" ? "jsonl" : "auto";
    naming("data.train", [&] { return data::find_inputs(config.data.train, format); });
    if (!config.data.val.empty()) naming("data.val", [&] { return data::find_inputs(config.data.val, format); });
  }
  if (name != "classification" || config.model.classes > 0) model_config(config.model).check();
}

std::unique_ptr<data::Objective> evaluation_of(const RunConfig& config, const data::Tokenizer& tokenizer,
                                               const data::TokenSource& text) {
  return of_tokens(config, objective_name(config), tokenizer, text,
                   {false, Order::sequential, static_cast<uint64_t>(config.run.seed)});
}

std::unique_ptr<Feed> make_feed(RunConfig& config, const Log& log) {
  auto feed = std::make_unique<Feed>();
  const std::string name = objective_name(config);
  check_objective(config.model, name);
  const auto seed = static_cast<uint64_t>(config.run.seed);
  const Split training{true, data::parse_order(config.data.order), seed};
  const Split evaluating{false, Order::sequential, seed};
  if (name == "synthetic") {
    data::SyntheticOptions o;
    o.T = config.model.seq_len;
    o.vocab = static_cast<int32_t>(config.model.vocab);
    o.seed = seed;
    o.order = training.order;
    feed->train = data::make_synthetic_classification(o);
    return feed;
  }
  feed->tokenizer = settle_vocabulary(config, name);
  if (config.data.cache.empty()) config.data.cache = run_folder_of(config) + "/cache";

  if (name == "pairs" || name == "classification") {
    if (config.data.val.empty() && config.data.val_fraction > 0)
      throw UsageError(fmt::format("data.val_fraction = {}: {} holds out whole files; name them in data.val",
                                   config.data.val_fraction, name));
    feed->train_items = naming("data.train", [&] { return open_items(config, config.data.train, name, *feed); });
    if (name == "classification" && config.model.classes == 0) config.model.classes = feed->train_items.num_classes;
    feed->train = of_items(config, name, *feed, feed->train_items, training);
    if (!config.data.val.empty()) {
      feed->val_items = naming("data.val", [&] { return open_items(config, config.data.val, name, *feed); });
      feed->val = of_items(config, name, *feed, feed->val_items, evaluating);
    }
    return feed;
  }
  feed->train_tokens = naming("data.train", [&] { return open_tokens(config, config.data.train, *feed, log); });
  if (!config.data.val.empty()) {
    feed->val_tokens = naming("data.val", [&] { return open_tokens(config, config.data.val, *feed, log); });
  } else if (config.data.val_fraction > 0) {
    const auto count = static_cast<uint64_t>(static_cast<double>(feed->train_tokens.size()) * config.data.val_fraction);
    feed->val_tokens = hold_out(feed->train_tokens, count);
    feed->train_tokens.shorten(feed->train_tokens.size() - count);
  }
  const std::string length = fmt::format("model.seq_len = {}", config.model.seq_len);
  feed->train = naming(fmt::format("data.train = {}, {}", fmt::join(config.data.train, ", "), length),
                       [&] { return of_tokens(config, name, *feed->tokenizer, feed->train_tokens, training); });
  if (feed->val_tokens.size() > 0)
    feed->val = naming(fmt::format("what is held out, {}", length),
                       [&] { return of_tokens(config, name, *feed->tokenizer, feed->val_tokens, evaluating); });
  return feed;
}

}  // namespace esp::train
