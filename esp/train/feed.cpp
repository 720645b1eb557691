#include "esp/train/feed.h"

#include <algorithm>
#include <optional>

#include <fmt/format.h>
#include <fmt/ranges.h>

#include "esp/base/error.h"
#include "esp/base/table.h"
#include "esp/data/inputs.h"
#include "esp/obs/file.h"
#include "esp/train/data_identity.h"

namespace esp::train {
namespace {

using data::Order;

constexpr uint64_t kFewestTokens = 2;  // of a text that is evaluated

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
  o.cache_dir = c.data.cache.empty() ? run_folder_of(c) + "/cache" : c.data.cache;
  // Fewer rows than the tokenizer has ids (bytes alone, say) are the model's choice, and its to answer for.
  const auto vocab = static_cast<int32_t>(c.model.vocab), ids = feed.tokenizer->vocab_size();
  o.vocab = std::max(vocab, ids);
  data::TokenSource source = data::open_source(o, *feed.tokenizer, log);
  source.compare_with([c](const std::string& path) {
    if (c.data.identity.empty()) throw obs::FileChanged(fmt::format("{} was written while it is read", path));
    check_data_unchanged(c);
  });
  if (vocab >= ids) return source;
  constexpr uint64_t kLookedThrough = uint64_t{1} << 26;  // longer texts are checked as they are read
  if (const int64_t most = source.size() <= kLookedThrough ? source.max_id() : 0; most >= vocab)
    throw UsageError(
        fmt::format("model.vocab = {1}: the text has id {0}; set at least {2}, or 0 for the {3} of the tokenizer", most,
                    vocab, most + 1, ids));
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
                       const Feed& feed, const Log& log) {
  data::ItemOptions o;
  o.paths = paths;
  o.text_key = c.data.text_key;
  o.label_key = c.data.label_key;
  if (name == "pairs") {
    if (o.text_key == "text") o.text_key = "source";
    o.target_key = c.data.target_key;
  }
  return data::read_items(o, *feed.tokenizer, log);
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

void settle_classes(RunConfig& config, const data::Items& train) {
  if (train.num_classes < 2)
    throw UsageError(fmt::format("data.train: got one class in \"{}\"; expected at least 2", config.data.label_key));
  if (config.model.classes == 0) config.model.classes = train.num_classes;
  if (train.num_classes > config.model.classes)
    throw UsageError(
        fmt::format("model.classes = {}: data.train has labels of {} classes. Give at least that many, or 0",
                    config.model.classes, train.num_classes));
}

// Words are numbered in each set by itself: those of `val` get the numbers that they have in `train`.
void match_classes(const RunConfig& config, const data::Items& train, data::Items& val) {
  if (train.classes.empty() != val.classes.empty())
    throw UsageError(fmt::format("data.val: its labels are {}, those of data.train {}; expected the same in both",
                                 val.classes.empty() ? "numbers" : "words",
                                 train.classes.empty() ? "numbers" : "words"));
  if (val.classes.empty()) {
    if (val.num_classes > config.model.classes)
      throw UsageError(fmt::format("data.val: got the label {}; expected 0 to {} (model.classes = {})",
                                   val.num_classes - 1, config.model.classes - 1, config.model.classes));
    return;
  }
  std::vector<int32_t> number;
  for (const std::string& word : val.classes) {
    const auto found = std::find(train.classes.begin(), train.classes.end(), word);
    if (found == train.classes.end())
      throw UsageError(fmt::format("data.val: got the label \"{}\", which data.train does not have; its labels are {}",
                                   word, fmt::join(train.classes, ", ")));
    number.push_back(static_cast<int32_t>(found - train.classes.begin()));
  }
  for (int32_t& label : val.labels) label = number[static_cast<size_t>(label)];
  val.classes = train.classes;
  val.num_classes = train.num_classes;
}

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
    throw UsageError("data.train is empty: name text, jsonl, csv or .bin files, a folder or a glob");
  return tokenizer;
}

struct FoundData {
  std::vector<data::Input> train, val;

  bool any(auto is_kind) const {
    const auto of = [&](const data::Input& input) { return is_kind(input.kind); };
    return std::any_of(train.begin(), train.end(), of) || std::any_of(val.begin(), val.end(), of);
  }
};

// Without a word: opening the data warns of what it passes over.
FoundData find_data(const RunConfig& config, const std::string& objective) {
  const std::string_view format = objective == "pairs" || objective == "classification" ? "records" : "auto";
  const Log silent(LogLevel::off, -1);
  FoundData found;
  found.train = naming("data.train", [&] { return data::find_inputs(config.data.train, format, silent); });
  if (!config.data.val.empty())
    found.val = naming("data.val", [&] { return data::find_inputs(config.data.val, format, silent); });
  return found;
}

// A key of the data that no file of this run needs has been misunderstood.
void refuse_unread_keys(const RunConfig& config, const std::string& objective) {
  using data::InputKind;
  const bool has_text_key = config.data.text_key != DataSection().text_key;
  if (config.data.bin_type.empty() && !has_text_key) return;
  const FoundData found = find_data(config, objective);
  const bool has_raw = found.any([](InputKind kind) { return kind == InputKind::bin; });
  const bool has_records = found.any([](InputKind kind) { return data::holds_text(kind) && kind != InputKind::text; });
  if (!config.data.bin_type.empty() && !has_raw)
    throw UsageError(
        fmt::format("data.bin_type = {}: read only for raw .bin files; data.train and data.val name none. "
                    "Leave data.bin_type out.",
                    config.data.bin_type));
  if (has_text_key && !has_records)
    throw UsageError(
        fmt::format("data.text_key = {}: read only for records (.jsonl, .json, .csv, .tsv); data.train and "
                    "data.val name none. Name such files, or leave data.text_key out.",
                    config.data.text_key));
}

void warn_of_overlap(const RunConfig& config, const std::string& objective, const Log& log) {
  if (config.data.val.empty()) return;
  const FoundData found = find_data(config, objective);
  const std::vector<std::string> common = data::common_files(found.train, found.val);
  if (common.empty()) return;
  log.warn("data.val: {} of its {} files are in data.train too ({}{}): the validation loss is not of unseen text",
           common.size(), found.val.size(), common[0], common.size() > 1 ? ", …" : "");
}

}  // namespace

void check_feed(RunConfig config) {
  const std::string name = objective_name(config);
  check_objective(config.model, name);
  data::parse_order(config.data.order);
  if (name != "synthetic") {
    settle_vocabulary(config, name);
    find_data(config, name);
    refuse_unread_keys(config, name);
  }
  if (name != "classification" || config.model.classes > 0) model_config(config.model).check();
}

std::unique_ptr<data::Objective> evaluation_of(const RunConfig& config, const data::Tokenizer& tokenizer,
                                               const data::TokenSource& text) {
  return of_tokens(config, objective_name(config), tokenizer, text,
                   {false, Order::sequential, static_cast<uint64_t>(config.run.seed)});
}

namespace {

std::unique_ptr<Feed> open_feed(RunConfig& config, const Log& log) {
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
  refuse_unread_keys(config, name);
  if (log.enabled(LogLevel::warn)) warn_of_overlap(config, name, log);
  if (name == "pairs" || name == "classification") {
    if (config.data.val.empty() && config.data.val_fraction > 0)
      throw UsageError(fmt::format("data.val_fraction = {}: {} holds out whole files; name them in data.val",
                                   config.data.val_fraction, name));
    feed->train_items = naming("data.train", [&] { return open_items(config, config.data.train, name, *feed, log); });
    if (name == "classification") settle_classes(config, feed->train_items);
    feed->train = of_items(config, name, *feed, feed->train_items, training);
    if (!config.data.val.empty()) {
      feed->val_items = naming("data.val", [&] { return open_items(config, config.data.val, name, *feed, log); });
      if (name == "classification") match_classes(config, feed->train_items, feed->val_items);
      feed->val = of_items(config, name, *feed, feed->val_items, evaluating);
    }
    return feed;
  }
  feed->train_tokens = naming("data.train", [&] { return open_tokens(config, config.data.train, *feed, log); });
  if (!config.data.val.empty()) {
    feed->val_tokens = naming("data.val", [&] { return open_tokens(config, config.data.val, *feed, log); });
  } else if (config.data.val_fraction > 0) {
    const auto count = static_cast<uint64_t>(static_cast<double>(feed->train_tokens.size()) * config.data.val_fraction);
    if (count < kFewestTokens)
      throw UsageError(
          fmt::format("data.val_fraction = {}: holds out {} of {} tokens; expected at least {}, of which the "
                      "second is predicted. Raise it, or name files in data.val",
                      config.data.val_fraction, count, feed->train_tokens.size(), kFewestTokens));
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

}  // namespace

std::unique_ptr<Feed> make_feed(RunConfig& config, const Log& log) {
  auto feed = open_feed(config, log);
  check_data_unchanged(config);  // what was read is what was compared with other ranks and the former run
  return feed;
}

}  // namespace esp::train
