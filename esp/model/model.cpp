#include "esp/model/model.h"

#include "esp/base/check.h"
#include "esp/model/counts.h"

namespace esp::model {

KvCache Model::make_cache(const tensor::Context& context, int64_t batch, int64_t capacity) {
  ESP_CHECK(can_generate(), "{} does not generate", config().arch);
  const ModelConfig& c = config();
  KvCache cache;
  for (int64_t i = 0; i < c.layers; ++i)
    cache.layers.push_back(tensor::empty(context, {batch, capacity, 2 * c.kv_heads_or_all() * c.head_dim()},
                                         parameters().all().front().weight.value.dtype(),
                                         device::MemoryCategory::buffer));
  return cache;
}

tensor::Tensor Model::extend(nn::Pass&, const tensor::Tensor&, KvCache&) {
  ESP_CHECK(false, "{} does not generate", config().arch);
}

double Model::flops_per_token(int64_t seq_len) const {
  return model::flops_per_token(config(), seq_len);
}

State Model::hidden(nn::Pass& pass, const Batch& batch) {
  return blocks(0, num_blocks(), pass, stem(pass, batch), batch);
}

autograd::Loss Model::forward(nn::Pass& pass, const Batch& batch, double scale) {
  return loss(pass, hidden(pass, batch), batch, scale);
}

tensor::Tensor Model::logits_of(nn::Pass& pass, const Batch& batch) {
  const autograd::NoRecording quiet(*pass.tape);
  return logits(pass, hidden(pass, batch));
}

}  // namespace esp::model
