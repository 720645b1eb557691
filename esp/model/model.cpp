#include "esp/model/model.h"

#include "esp/base/check.h"
#include "esp/base/error.h"
#include "esp/device/gpu.h"
#include "esp/model/counts.h"

namespace esp::model {

void check_ids(const tensor::Tensor& ids, int32_t least, int64_t below, std::string_view what) {
  if (!ids.defined() || !device::on_host(ids.data())) return;  // whoever put them on a device looked before
  for (int64_t i = 0; i < ids.count(); ++i)
    if (const int32_t id = ids.as<int32_t>()[i]; id < least || id >= below)
      throw UsageError(
          fmt::format("{} {} at place {} of a batch {}: the model knows 0 to {}; does the tokenizer's "
                      "vocabulary fit the model's?",
                      what, id, i, ids.shape().text(), below - 1));
}

KvCache Model::make_cache(const tensor::Context& context, int64_t batch, int64_t capacity) {
  ESP_CHECK(can_generate(), "{} does not generate", config().arch);
  const ModelConfig& c = config();
  KvCache cache;
  for (int64_t i = 0; i < c.layers; ++i)
    cache.layers.push_back(tensor::empty(context, {batch, capacity, 2 * c.kv_heads_or_all() * c.head_dim()},
                                         parameters().all().front().weight.used_value().dtype(),
                                         device::MemoryCategory::buffer));
  return cache;
}

tensor::Tensor Model::extend(nn::Pass&, const tensor::Tensor&, KvCache&) {
  ESP_CHECK(false, "{} does not generate", config().arch);
}

void Model::read(nn::Pass&, const Batch&, KvCache&) {
  ESP_CHECK(false, "{} has no encoder", config().arch);
}

double Model::flops_per_token(int64_t seq_len) const {
  return model::flops_per_token(config(), seq_len);
}

void check_inputs(const ModelConfig& config, const Batch& batch) {
  check_ids(batch.inputs, 0, config.vocab, "token");
  check_ids(batch.decoder_inputs, 0, config.vocab, "token");
  check_ids(batch.segments, 0, config.type_vocab, "segment");
}

void check_targets(const ModelConfig& config, const Batch& batch) {
  check_ids(batch.targets, INT32_MIN, config.num_classes > 0 ? config.num_classes : config.vocab, "target");
}

State Model::hidden(nn::Pass& pass, const Batch& batch) {
  check_inputs(config(), batch);
  return blocks(0, num_blocks(), pass, stem(pass, batch), batch);
}

autograd::Loss Model::forward(nn::Pass& pass, const Batch& batch, double scale) {
  check_targets(config(), batch);
  return loss(pass, hidden(pass, batch), batch, scale);
}

tensor::Tensor Model::logits_of(nn::Pass& pass, const Batch& batch) {
  const autograd::NoRecording quiet(*pass.tape);
  return logits(pass, hidden(pass, batch));
}

}  // namespace esp::model
