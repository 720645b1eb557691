#include "esp/train/sampling.h"

#include <algorithm>
#include <cmath>
#include <numeric>

#include <fmt/format.h>

#include "esp/base/error.h"
#include "esp/base/rng.h"
#include "esp/data/objective.h"
#include "esp/device/gpu.h"
#include "esp/train/data_pipeline.h"
#include "esp/train/device_batch.h"

namespace esp::train {
namespace {

constexpr uint64_t kSamplingPurpose = 0x73616d706c65;

nn::ForwardContext inference_pass(autograd::Tape& tape) {
  tape.set_recording(false);
  nn::ForwardContext pass;
  pass.tape = &tape;
  return pass;
}

IoError not_finite(const TrainedModel& loaded, std::string_view what) {
  return IoError(
      fmt::format("{}: got {} that are not finite; the weights contain NaN, infinity or values too large for {}",
                  loaded.path, what, loaded.config.train.precision));
}

std::vector<double> values_of(const tensor::Tensor& x) {
  std::vector<std::byte> bytes;
  tensor::Tensor here = x;
  if (!device::is_host_accessible(x.data())) {  // copies all values from the device in one transfer, not one by one
    bytes.resize(x.bytes());
    device::transfer(bytes.data(), x.data(), x.bytes());
    here = tensor::Tensor::borrow(bytes.data(), x.shape(), x.dtype());
  }
  std::vector<double> values(static_cast<size_t>(x.count()));
  for (size_t i = 0; i < values.size(); ++i) values[i] = tensor::item(here, static_cast<int64_t>(i));
  return values;
}

// Encodes `text` as the source, truncated like the sources in training on pairs: it ends with the end-of-text token, if
// the tokenizer has one. Returns the first token of the answer.
std::vector<int32_t> read_source(TrainedModel& loaded, nn::ForwardContext& pass, std::vector<int32_t> text,
                                 std::optional<int32_t> eos, model::KvCache& cache) {
  const auto most = static_cast<size_t>(loaded.model->config().seq_len);
  if (eos && text.back() == *eos) text.pop_back();
  text.resize(std::min(text.size(), most - (eos ? 1 : 0)));
  if (eos) text.push_back(*eos);
  model::ModelBatch source;
  source.inputs =
      to_device(loaded.context, tensor::Tensor::borrow(text.data(), {1, static_cast<int64_t>(text.size())}, DType::i32),
                device::MemoryCategory::buffer);
  loaded.model->encode_source(pass, source, cache);
  pass.tape->clear();
  return {data::PairOptions().decoder_start};
}

}  // namespace

int32_t choose_token(std::span<const double> logits, const SamplingOptions& o, uint64_t position) {
  if (o.temperature == 0) return static_cast<int32_t>(std::max_element(logits.begin(), logits.end()) - logits.begin());
  std::vector<int32_t> ids(logits.size());
  std::iota(ids.begin(), ids.end(), 0);
  const auto likelier = [&](int32_t a, int32_t b) {
    const double x = logits[static_cast<size_t>(a)], y = logits[static_cast<size_t>(b)];
    return x != y ? x > y : a < b;
  };
  if (o.top_k > 0 && static_cast<size_t>(o.top_k) < ids.size()) {
    std::nth_element(ids.begin(), ids.begin() + o.top_k - 1, ids.end(), likelier);
    ids.resize(static_cast<size_t>(o.top_k));
  }
  std::sort(ids.begin(), ids.end(), likelier);
  const double top = logits[static_cast<size_t>(ids[0])];
  std::vector<double> weights(ids.size());
  double total = 0;
  for (size_t i = 0; i < ids.size(); ++i)
    total += weights[i] = std::exp((logits[static_cast<size_t>(ids[i])] - top) / o.temperature);
  size_t kept = ids.size();
  if (o.top_p < 1) {
    double sum = 0;
    for (kept = 0; kept < ids.size() && sum < o.top_p * total; ++kept) sum += weights[kept];
    kept = std::max<size_t>(1, kept);
    total = std::accumulate(weights.begin(), weights.begin() + static_cast<long>(kept), 0.0);
  }
  double left = random_unit(o.seed, kSamplingPurpose, position) * total;
  for (size_t i = 0; i < kept; ++i)
    if ((left -= weights[i]) < 0) return ids[i];
  return ids[kept - 1];
}

std::vector<int32_t> generate(TrainedModel& loaded, std::vector<int32_t> text, int64_t count,
                              const SamplingOptions& options, const std::function<bool(int32_t)>& emit) {
  model::Model& model = *loaded.model;
  if (!model.can_generate())
    throw UsageError(
        fmt::format("model.arch = {}: cannot generate text; expected gpt, llama or t5", model.config().arch));
  const data::SpecialTokens special = loaded.tokenizer ? loaded.tokenizer->special() : data::SpecialTokens();
  if (text.empty()) text.push_back(special.eos.value_or(0));
  for (int32_t id : text)
    if (id < 0 || id >= model.config().vocab)
      throw UsageError(
          fmt::format("token id: got {}; expected 0 to {} (model.vocab - 1)", id, model.config().vocab - 1));
  // Ids of the vocabulary padding have no text, so they are never sampled.
  const int64_t ids_of_text =
      loaded.tokenizer ? std::min<int64_t>(loaded.tokenizer->vocab_size(), model.config().vocab) : model.config().vocab;
  const int64_t context_length = model.config().seq_len;
  autograd::Tape tape(loaded.context);
  nn::ForwardContext pass = inference_pass(tape);
  model::KvCache cache = model.make_cache(loaded.context, 1, context_length);
  const auto eos = special.eos;
  if (model.has_encoder()) {
    text = read_source(loaded, pass, std::move(text), eos, cache);
    count = std::min(count, context_length);  // an answer cannot continue from its last half, as other texts do
  }
  const size_t prompt = text.size();
  size_t cached = 0;  // number of tokens of `text` that the KV cache contains
  while (static_cast<int64_t>(text.size() - prompt) < count) {
    int64_t fresh = static_cast<int64_t>(text.size() - cached);
    if (cache.length + fresh > context_length) {
      cache.length = 0;
      fresh = std::min<int64_t>(static_cast<int64_t>(text.size()), context_length / 2 + 1);
    }
    const tensor::Tensor ids = to_device(
        loaded.context,
        tensor::Tensor::borrow(text.data() + text.size() - static_cast<size_t>(fresh), {1, fresh}, DType::i32),
        device::MemoryCategory::buffer);
    const std::vector<double> logits = values_of(model.extend(pass, ids, cache));
    if (!std::all_of(logits.begin(), logits.end(), [](double value) { return std::isfinite(value); }))
      throw not_finite(loaded, "logits");
    tape.clear();
    cached = text.size();
    text.push_back(choose_token(std::span(logits).first(static_cast<size_t>(ids_of_text)), options, text.size()));
    if (std::find(loaded.end_ids.begin(), loaded.end_ids.end(), text.back()) != loaded.end_ids.end()) break;
    if (emit && !emit(text.back())) break;
  }
  return {text.begin() + static_cast<long>(prompt), text.end()};
}

namespace {

double mean_loss(const TrainedModel& loaded, const std::vector<double>& losses) {
  const double mean = std::accumulate(losses.begin(), losses.end(), 0.0) / static_cast<double>(losses.size());
  if (!losses.empty() && !std::isfinite(mean)) throw not_finite(loaded, "losses");
  return mean;
}

// Loss of the masked tokens, with the objective that the model was trained for. Runs one row at a time.
TextLoss masked_token_loss(TrainedModel& loaded, std::span<const int32_t> tokens) {
  data::TokenSource source;
  source.add(std::vector<int32_t>(tokens.begin(), tokens.end()), "the text");
  const auto objective = evaluation_of(loaded.config, require_tokenizer(loaded), source);
  autograd::Tape tape(loaded.context);
  nn::ForwardContext pass = inference_pass(tape);
  DeviceBatch batch(loaded.context, loaded.model->config());
  data::Batch row;
  TextLoss result;
  for (uint64_t sample = 0; sample < objective->samples_per_epoch(); ++sample) {
    data::fill_batch(*objective, sample, 1, row);
    batch.load(row);
    const autograd::Loss loss = loaded.model->forward(pass, batch.rows(0, 1, row.shape.T), 0);
    const std::vector<double> losses = values_of(loss.losses);
    for (size_t i = 0; i < losses.size(); ++i)
      if (row.targets[i] != data::kIgnoreIndex) result.token_losses.push_back(losses[i]);
    tape.clear();
  }
  result.loss = mean_loss(loaded, result.token_losses);
  return result;
}

}  // namespace

TextLoss text_loss(TrainedModel& loaded, std::span<const int32_t> tokens) {
  if (tokens.size() < 2) throw UsageError(fmt::format("text: got {} tokens; expected at least 2", tokens.size()));
  const std::string objective = objective_name(loaded.config);
  if (loaded.config.model.headless)
    throw UsageError("this model has no head (model.headless): it predicts no tokens to evaluate");
  if (objective == "masked_token" || objective == "span_corruption") return masked_token_loss(loaded, tokens);
  if (objective != "next_token")
    throw UsageError(
        fmt::format("data.objective = \"{}\": a model trained for it cannot be evaluated on a text; expected "
                    "next_token, masked_token or span_corruption",
                    objective));
  const auto window = static_cast<size_t>(loaded.config.model.seq_len);
  autograd::Tape tape(loaded.context);
  nn::ForwardContext pass = inference_pass(tape);
  TextLoss result;
  for (size_t first = 0; first + 1 < tokens.size(); first += window) {
    const auto length = static_cast<int64_t>(std::min(window, tokens.size() - 1 - first));
    int32_t* at = const_cast<int32_t*>(tokens.data()) + first;
    model::ModelBatch batch;
    batch.inputs = tensor::Tensor::borrow(at, {1, length}, DType::i32);
    batch.targets = tensor::Tensor::borrow(at + 1, {1, length}, DType::i32);
    model::check_inputs(loaded.model->config(), batch);
    model::check_targets(loaded.model->config(), batch);
    for (tensor::Tensor* ids : {&batch.inputs, &batch.targets})
      *ids = to_device(loaded.context, *ids, device::MemoryCategory::buffer);
    const autograd::Loss loss = loaded.model->forward(pass, batch, 0);
    for (const double one : values_of(loss.losses)) result.token_losses.push_back(one);
    tape.clear();
  }
  result.loss = mean_loss(loaded, result.token_losses);
  return result;
}

}  // namespace esp::train
