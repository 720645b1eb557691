#include "esp/train/data_pipeline.h"

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

using data::SampleOrder;

constexpr uint64_t kMinHeldOutTokens = 2;  // minimum number of held-out tokens: one input and one target

// How an objective draws samples: for training in the order that the run file sets, for evaluation in sequence over all
// samples.
struct Split {
  bool training;
  SampleOrder order;
  uint64_t seed;
};

std::unique_ptr<data::Objective> next_token(const RunConfig& c, const data::TokenSource& source, const Split& split) {
  data::NextTokenOptions o;
  o.T = c.model.seq_len;
  o.seed = split.seed;
  o.order = split.order;
  o.shift = split.training && split.order == SampleOrder::shuffled;
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
  // A tokenizer without [MASK] uses its last id as the mask. In the "byte" tokenizer that id is the end of text or
  // 0xFF, neither of which occurs in UTF-8 text.
  o.mask = special.mask ? special.mask : std::optional<int32_t>(tokenizer.vocab_size() - 1);
  o.cls = special.cls;
  o.sep = special.sep;
  o.pad = special.pad;
  return data::make_masked_token(source, o);
}

data::SpanCorruptionOptions span_options(const RunConfig& c, const Split& split, const data::Tokenizer& tokenizer) {
  data::SpanCorruptionOptions o;
  o.T = c.model.seq_len;
  o.seed = split.seed;
  o.order = split.order;
  o.rate = c.data.mask_rate;
  o.vocab = static_cast<int32_t>(c.model.vocab);
  o.text_vocab = tokenizer.vocab_size();
  o.eos = tokenizer.special().eos;
  return o;
}

// UsageError if a row of the decoder does not fit into a learned position table, which has model.seq_len rows.
void check_decoder_length(const RunConfig& c, const data::TokenSource& source, const Split& split,
                          const data::Tokenizer& tokenizer, const data::Objective& objective) {
  const int64_t length = objective.shape().T_decoder, table = c.model.seq_len;
  if (length <= table || model_config(c.model).positions != model::Positions::learned) return;
  data::SpanCorruptionOptions o = span_options(c, split, tokenizer);
  for (auto percent = static_cast<int>(100 * o.rate); percent > 0; --percent) {
    o.rate = percent / 100.0;
    if (data::make_span_corruption(source, o)->shape().T_decoder <= table)
      throw UsageError(
          fmt::format("data.mask_rate = {}: the decoder needs rows of {} ids; must be <= {} with model.seq_len = {}",
                      c.data.mask_rate, length, o.rate, table));
  }
  throw UsageError(
      fmt::format("model.seq_len = {}: the decoder needs rows of {} ids. Use a longer sequence", table, length));
}

std::unique_ptr<data::Objective> make_token_objective(const RunConfig& c, const std::string& name,
                                                      const data::Tokenizer& tokenizer, const data::TokenSource& source,
                                                      const Split& split) {
  if (name == "masked_token") return masked_token(c, source, split, tokenizer);
  if (name == "span_corruption") return data::make_span_corruption(source, span_options(c, split, tokenizer));
  return next_token(c, source, split);
}

std::unique_ptr<data::Objective> make_item_objective(const RunConfig& c, const std::string& name,
                                                     const DataPipeline& pipeline, const data::Items& items,
                                                     const Split& split) {
  const data::SpecialTokens& special = pipeline.tokenizer->special();
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

// Calls f. If f throws, the error message is prefixed with the run-file keys that name the files.
template <typename F>
auto with_key_in_errors(const std::string& keys, F&& f) {
  try {
    return f();
  } catch (const IoError& error) {
    throw IoError(fmt::format("{}: {}", keys, error.what()));
  } catch (const UsageError& error) {
    throw UsageError(fmt::format("{}: {}", keys, error.what()));
  }
}

data::TokenSource open_tokens(const RunConfig& c, const std::vector<std::string>& paths, const DataPipeline& pipeline,
                              const Log& log) {
  data::SourceOptions o;
  o.paths = paths;
  o.text_key = c.data.text_key;
  if (!c.data.bin_type.empty()) o.bin_type = data::parse_token_type(c.data.bin_type);
  o.cache_dir = c.data.cache.empty() ? run_folder_of(c) + "/cache" : c.data.cache;
  // model.vocab may be smaller than the tokenizer's vocabulary (for example with the "byte" tokenizer). Then all ids of
  // the text are checked below.
  const auto vocab = static_cast<int32_t>(c.model.vocab), ids = pipeline.tokenizer->vocab_size();
  o.vocab = std::max(vocab, ids);
  data::TokenSource source = data::open_source(o, *pipeline.tokenizer, log);
  if (vocab >= ids) return source;
  // number of tokens checked here; longer texts are checked while they are read
  constexpr uint64_t kLookedThrough = uint64_t{1} << 26;
  if (const int64_t most = source.size() <= kLookedThrough ? source.max_id() : 0; most >= vocab)
    throw UsageError(fmt::format(
        "model.vocab = {1}: the text has token id {0}; set at least {2}, or 0 for the {3} ids of the tokenizer", most,
        vocab, most + 1, ids));
  source.set_vocab(vocab);
  return source;
}

// Copies the last `count` tokens of a source; this is small compared with the source.
data::TokenSource hold_out(const data::TokenSource& source, uint64_t count) {
  std::vector<int32_t> tokens(count);
  source.read(source.size() - count, tokens);
  data::TokenSource held;
  held.add(std::move(tokens), "held out");
  return held;
}

data::Items open_items(const RunConfig& c, const std::vector<std::string>& paths, const std::string& name,
                       const DataPipeline& pipeline, const Log& log) {
  data::ItemOptions o;
  o.paths = paths;
  o.text_key = c.data.text_key;
  o.label_key = c.data.label_key;
  if (name == "pairs") {
    if (o.text_key == "text") o.text_key = "source";
    o.target_key = c.data.target_key;
  }
  return data::read_items(o, *pipeline.tokenizer, log);
}

// The architectures that can train each objective. An encoder-decoder needs a source row and a target row. Only BERT is
// bidirectional and has a classifier.
constexpr struct {
  std::string_view name, archs;
} kObjectives[] = {{"next_token", "gpt llama bert"}, {"masked_token", "bert"},
                   {"span_corruption", "t5"},        {"pairs", "t5"},
                   {"classification", "bert"},       {"synthetic", "bert"}};

void check_objective(const ModelSection& model, std::string_view name) {
  auto suits = [&](const auto& row) { return row.archs.find(model.arch) != std::string_view::npos; };
  if (suits(find_row("objective", kObjectives, name))) {
    if (name == "synthetic" && model.classes == 0)
      throw UsageError("data.objective = \"synthetic\": needs model.classes = 2, because its rows have two classes");
    return;
  }
  std::vector<std::string_view> fitting;
  for (const auto& row : kObjectives)
    if (suits(row)) fitting.push_back(row.name);
  throw UsageError(fmt::format("data.objective = \"{}\": not supported by model.arch = \"{}\"; expected {}", name,
                               model.arch, fmt::join(fitting, ", ")));
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

void set_num_classes(RunConfig& config, const data::Items& train) {
  if (train.num_classes < 2)
    throw UsageError(fmt::format("data.train: got one class in \"{}\"; expected at least 2", config.data.label_key));
  if (config.model.classes == 0) config.model.classes = train.num_classes;
  if (train.num_classes > config.model.classes)
    throw UsageError(
        fmt::format("model.classes = {}: data.train has labels of {} classes. Set it to 0 or to at least that number",
                    config.model.classes, train.num_classes));
}

// Each data set numbers its label words separately. This function renumbers the labels of `val` to those of `train`.
void match_classes(const RunConfig& config, const data::Items& train, data::Items& val) {
  if (train.classes.empty() != val.classes.empty())
    throw UsageError(fmt::format(
        "data.val: got labels that are {}; the labels of data.train are {}. Use the same kind of labels in both",
        val.classes.empty() ? "numbers" : "words", train.classes.empty() ? "numbers" : "words"));
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
      throw UsageError(fmt::format("data.val: got the label \"{}\"; expected a label that data.train has: {}", word,
                                   fmt::join(train.classes, ", ")));
    number.push_back(static_cast<int32_t>(found - train.classes.begin()));
  }
  for (int32_t& label : val.labels) label = number[static_cast<size_t>(label)];
  val.classes = train.classes;
  val.num_classes = train.num_classes;
}

// Loads the tokenizer and sets model.vocab from it.
std::unique_ptr<data::Tokenizer> load_tokenizer_and_vocab(RunConfig& config, const std::string& objective) {
  auto tokenizer = with_key_in_errors("data.tokenizer (\"byte\", a tokenizer.json or a folder with one)",
                                      [&] { return data::load_tokenizer(config.data.tokenizer); });
  if (config.model.vocab == 0) {
    config.model.vocab = tokenizer->vocab_size();
    if (objective == "span_corruption") config.model.vocab += 100;  // 100 more ids for the sentinels
  }
  if (config.model.vocab < tokenizer->vocab_size() && config.data.tokenizer != "byte")
    throw UsageError(fmt::format("model.vocab = {}: tokenizer {} has {} ids. Set it to 0 or to at least that number",
                                 config.model.vocab, config.data.tokenizer, tokenizer->vocab_size()));
  if (config.data.train.empty())
    throw UsageError("data.train: got an empty list; expected text, jsonl, csv or .bin files, a folder or a glob");
  return tokenizer;
}

struct FoundData {
  std::vector<data::Input> train, val;

  bool any(auto is_kind) const {
    const auto of = [&](const data::Input& input) { return is_kind(input.kind); };
    return std::any_of(train.begin(), train.end(), of) || std::any_of(val.begin(), val.end(), of);
  }
};

// Finds the data files and logs nothing; a warning about skipped files follows when the data is opened.
FoundData find_data(const RunConfig& config, const std::string& objective) {
  const std::string_view format = objective == "pairs" || objective == "classification" ? "records" : "auto";
  const Log silent(LogLevel::off, -1);
  FoundData found;
  found.train = with_key_in_errors("data.train", [&] { return data::find_inputs(config.data.train, format, silent); });
  if (!config.data.val.empty())
    found.val = with_key_in_errors("data.val", [&] { return data::find_inputs(config.data.val, format, silent); });
  return found;
}

// Throws if a data key is set that has no effect on any file of this run, because the user probably expects an effect.
void refuse_unread_keys(const RunConfig& config, const std::string& objective) {
  using data::InputKind;
  const bool has_text_key = config.data.text_key != DataSection().text_key;
  if (config.data.bin_type.empty() && !has_text_key) return;
  const FoundData found = find_data(config, objective);
  const bool has_raw = found.any([](InputKind kind) { return kind == InputKind::bin; });
  const bool has_records = found.any([](InputKind kind) { return data::holds_text(kind) && kind != InputKind::text; });
  if (!config.data.bin_type.empty() && !has_raw)
    throw UsageError(
        fmt::format("data.bin_type = {}: used only for raw .bin files, and data.train and data.val contain none. "
                    "Remove data.bin_type",
                    config.data.bin_type));
  if (has_text_key && !has_records)
    throw UsageError(
        fmt::format("data.text_key = {}: used only for records (.jsonl, .json, .csv, .tsv); data.train and "
                    "data.val contain none. Add such files, or remove data.text_key",
                    config.data.text_key));
}

void warn_of_overlap(const RunConfig& config, const std::string& objective, const Log& log) {
  if (config.data.val.empty()) return;
  const FoundData found = find_data(config, objective);
  const std::vector<std::string> common = data::common_files(found.train, found.val);
  if (common.empty()) return;
  log.warn(
      "data.val: {} of its {} files are in data.train too ({}{}): the validation loss includes text seen in training",
      common.size(), found.val.size(), common[0], common.size() > 1 ? ", …" : "");
}

}  // namespace

void check_data_pipeline(RunConfig config) {
  const std::string name = objective_name(config);
  check_objective(config.model, name);
  data::parse_sample_order(config.data.order);
  if (name != "synthetic") {
    load_tokenizer_and_vocab(config, name);
    find_data(config, name);
    refuse_unread_keys(config, name);
  }
  if (name != "classification" || config.model.classes > 0) model_config(config.model).check();
}

std::unique_ptr<data::Objective> evaluation_of(const RunConfig& config, const data::Tokenizer& tokenizer,
                                               const data::TokenSource& text) {
  return make_token_objective(config, objective_name(config), tokenizer, text,
                              {false, SampleOrder::sequential, static_cast<uint64_t>(config.run.seed)});
}

namespace {

std::unique_ptr<DataPipeline> open_data_pipeline(RunConfig& config, const Log& log) {
  auto pipeline = std::make_unique<DataPipeline>();
  const std::string name = objective_name(config);
  check_objective(config.model, name);
  const auto seed = static_cast<uint64_t>(config.run.seed);
  const Split training{true, data::parse_sample_order(config.data.order), seed};
  const Split evaluating{false, SampleOrder::sequential, seed};
  if (name == "synthetic") {
    data::SyntheticOptions o;
    o.T = config.model.seq_len;
    o.vocab = static_cast<int32_t>(config.model.vocab);
    o.seed = seed;
    o.order = training.order;
    pipeline->train = data::make_synthetic_classification(o);
    return pipeline;
  }
  pipeline->tokenizer = load_tokenizer_and_vocab(config, name);
  refuse_unread_keys(config, name);
  if (log.enabled(LogLevel::warn)) warn_of_overlap(config, name, log);
  if (name == "pairs" || name == "classification") {
    if (config.data.val.empty() && config.data.val_fraction > 0)
      throw UsageError(
          fmt::format("data.val_fraction = {}: not supported with {}. Put the held-out files into data.val",
                      config.data.val_fraction, name));
    pipeline->train_items =
        with_key_in_errors("data.train", [&] { return open_items(config, config.data.train, name, *pipeline, log); });
    if (name == "classification") set_num_classes(config, pipeline->train_items);
    pipeline->train = make_item_objective(config, name, *pipeline, pipeline->train_items, training);
    if (!config.data.val.empty()) {
      pipeline->val_items =
          with_key_in_errors("data.val", [&] { return open_items(config, config.data.val, name, *pipeline, log); });
      if (name == "classification") match_classes(config, pipeline->train_items, pipeline->val_items);
      pipeline->val = make_item_objective(config, name, *pipeline, pipeline->val_items, evaluating);
    }
    return pipeline;
  }
  pipeline->train_tokens =
      with_key_in_errors("data.train", [&] { return open_tokens(config, config.data.train, *pipeline, log); });
  if (!config.data.val.empty()) {
    pipeline->val_tokens =
        with_key_in_errors("data.val", [&] { return open_tokens(config, config.data.val, *pipeline, log); });
  } else if (config.data.val_fraction > 0) {
    const auto count =
        static_cast<uint64_t>(static_cast<double>(pipeline->train_tokens.size()) * config.data.val_fraction);
    if (count < kMinHeldOutTokens)
      throw UsageError(
          fmt::format("data.val_fraction = {}: holds out {} of {} tokens; expected at least {} (one input "
                      "and one target). Increase it, or set data.val",
                      config.data.val_fraction, count, pipeline->train_tokens.size(), kMinHeldOutTokens));
    pipeline->val_tokens = hold_out(pipeline->train_tokens, count);
    pipeline->train_tokens.truncate(pipeline->train_tokens.size() - count);
  }
  const std::string length = fmt::format("model.seq_len = {}", config.model.seq_len);
  pipeline->train = with_key_in_errors(
      fmt::format("data.train = {}, {}", fmt::join(config.data.train, ", "), length),
      [&] { return make_token_objective(config, name, *pipeline->tokenizer, pipeline->train_tokens, training); });
  if (name == "span_corruption")
    check_decoder_length(config, pipeline->train_tokens, training, *pipeline->tokenizer, *pipeline->train);
  if (pipeline->val_tokens.size() > 0)
    pipeline->val = with_key_in_errors(
        fmt::format("data.val_fraction = {}, {}", config.data.val_fraction, length),
        [&] { return make_token_objective(config, name, *pipeline->tokenizer, pipeline->val_tokens, evaluating); });
  return pipeline;
}

}  // namespace

std::unique_ptr<DataPipeline> make_data_pipeline(RunConfig& config, const Log& log) {
  auto pipeline = open_data_pipeline(config, log);
  // ensures that the files read are those compared across ranks and with the previous run
  check_data_unchanged(config);
  return pipeline;
}

}  // namespace esp::train
