#include "esp/model/model.h"

#include "esp/base/check.h"
#include "esp/base/error.h"
#include "esp/device/gpu.h"
#include "esp/model/counts.h"

namespace esp::model {

void check_ids(const tensor::Tensor& ids, int32_t least, int64_t below, std::string_view what) {
  // Ids in GPU memory were checked on the host, before they were copied.
  if (!ids.defined() || !device::is_host_accessible(ids.data())) return;
  for (int64_t i = 0; i < ids.count(); ++i)
    if (const int32_t id = ids.as<int32_t>()[i]; id < least || id >= below)
      throw UsageError(
          fmt::format("{}: got {} at index {} of a batch with shape {}; expected 0 to {}. Check that the tokenizer "
                      "matches model.vocab",
                      what, id, i, ids.shape().text(), below - 1));
}

KvCache Model::make_cache(const tensor::Context& context, int64_t batch, int64_t capacity) {
  ESP_CHECK(can_generate(), "arch {} cannot generate", config().arch);
  const ModelConfig& c = config();
  KvCache cache;
  for (int64_t i = 0; i < c.layers; ++i)
    cache.layers.push_back(tensor::empty(context, {batch, capacity, 2 * c.kv_heads_or_all() * c.head_dim()},
                                         parameters().all().front().weight.fetch_value().dtype(),
                                         device::MemoryCategory::buffer));
  return cache;
}

tensor::Tensor Model::extend(nn::ForwardContext&, const tensor::Tensor&, KvCache&) {
  ESP_CHECK(false, "arch {} cannot generate", config().arch);
}

void Model::encode_source(nn::ForwardContext&, const ModelBatch&, KvCache&) {
  ESP_CHECK(false, "{} has no encoder", config().arch);
}

double Model::flops_per_token(int64_t seq_len) const {
  return model::flops_per_token(config(), seq_len);
}

void check_inputs(const ModelConfig& config, const ModelBatch& batch) {
  check_ids(batch.inputs, 0, config.vocab, "token id");
  check_ids(batch.decoder_inputs, 0, config.vocab, "token id");
  check_ids(batch.segments, 0, config.type_vocab, "segment id");
}

void check_targets(const ModelConfig& config, const ModelBatch& batch) {
  check_ids(batch.targets, INT32_MIN, config.num_classes > 0 ? config.num_classes : config.vocab, "target id");
}

HiddenStates Model::hidden(nn::ForwardContext& pass, const ModelBatch& batch) {
  check_inputs(config(), batch);
  return blocks(0, num_blocks(), pass, stem(pass, batch), batch);
}

autograd::Loss Model::forward(nn::ForwardContext& pass, const ModelBatch& batch, double scale) {
  check_targets(config(), batch);
  return loss(pass, hidden(pass, batch), batch, scale);
}

tensor::Tensor Model::logits_of(nn::ForwardContext& pass, const ModelBatch& batch) {
  const autograd::NoGradGuard quiet(*pass.tape);
  return logits(pass, hidden(pass, batch));
}

}  // namespace esp::model
