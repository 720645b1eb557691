// Generation with a KV cache must give the logits of a forward pass over the whole sequence.
#include <gtest/gtest.h>

#include "esp/autograd/testing.h"
#include "esp/model/testing.h"

namespace esp::model {
namespace {

// Logits of one position of every sequence, as doubles.
std::vector<double> row(const tensor::Tensor& logits, int64_t b, int64_t t, int64_t T) {
  std::vector<double> values;
  const int64_t V = logits.dim(-1);
  for (int64_t v = 0; v < V; ++v) values.push_back(tensor::item(logits, (b * T + t) * V + v));
  return values;
}

void expect_logits_of_the_whole(ModelConfig config) {
  for (const auto& [dtype, tolerance] :
       {std::pair{DType::f64, 1e-12}, std::pair{DType::f32, 1e-4}, std::pair{DType::bf16, 5e-2}}) {
    config.init_std = 0.2;
    TestModel t(config, dtype);
    constexpr int64_t B = 2, T = 20;
    ModelBatch batch;
    batch.inputs = t.ids({B, T}, config.vocab, 5);
    nn::ForwardContext pass = t.pass();
    const tensor::Tensor whole = t.model->logits_of(pass, batch);

    ASSERT_TRUE(t.model->can_generate());
    KvCache cache = t.model->make_cache(t.context, B, T);
    // Extends the cache by a prompt of 7 tokens, then by several tokens at once, then token by token.
    int64_t at = 0;
    for (const int64_t piece : {7, 3, 1, 1, 5, 1, 1, 1}) {
      tensor::Tensor ids = t.ids({B, piece}, 1, 0);
      for (int64_t b = 0; b < B; ++b)
        for (int64_t i = 0; i < piece; ++i)
          ids.as<int32_t>()[b * piece + i] = batch.inputs.as<int32_t>()[b * T + at + i];
      const tensor::Tensor logits = t.model->extend(pass, ids, cache);
      at += piece;
      EXPECT_EQ(cache.length, at);
      for (int64_t b = 0; b < B; ++b)
        EXPECT_LT(autograd::distance(row(logits, b, 0, 1), row(whole, b, at - 1, T)), tolerance)
            << name_of(dtype) << " token " << at;
    }
  }
}

class Generation : public testing::TestWithParam<const char*> {};

TEST_P(Generation, DecodingWithCacheMatchesFullForward) {
  expect_logits_of_the_whole(preset(GetParam()).config);
}

INSTANTIATE_TEST_SUITE_P(Archs, Generation, testing::Values("gpt-tiny", "llama-tiny"), [](const auto& arch) {
  return std::string(arch.param).substr(0, std::string(arch.param).find('-'));
});

TEST(Generation, DecodingWithCacheAndScaledRopeMatchesFullForward) {
  using kernel::RopeScaling;
  for (const RopeScaling kind : {RopeScaling::linear, RopeScaling::yarn, RopeScaling::llama3})
    expect_logits_of_the_whole(scaled_llama(kind));
}

TEST(Generation, EncoderDecoderDecodingWithCacheMatchesFullForward) {
  for (const auto& [dtype, tolerance] : {std::pair{DType::f64, 1e-12}, std::pair{DType::f32, 1e-4}}) {
    ModelConfig config = preset("t5-tiny").config;
    config.init_std = 0.2;
    TestModel t(config, dtype);
    constexpr int64_t B = 2, T = 12;
    ModelBatch batch;
    batch.inputs = t.ids({B, 9}, config.vocab, 5);
    batch.decoder_inputs = t.ids({B, T}, config.vocab, 6);
    batch.lengths = t.ids({B}, 1, 0);
    batch.lengths.as<int32_t>()[0] = 9;
    batch.lengths.as<int32_t>()[1] = 4;
    nn::ForwardContext pass = t.pass();
    const tensor::Tensor whole = t.model->logits_of(pass, batch);

    ASSERT_TRUE(t.model->can_generate() && t.model->has_encoder());
    KvCache cache = t.model->make_cache(t.context, B, T);
    // First encodes another source into the same cache; the next one must replace it completely.
    ModelBatch other;
    other.inputs = t.ids({B, 6}, config.vocab, 8);
    t.model->encode_source(pass, other, cache);
    t.model->extend(pass, t.ids({B, 3}, config.vocab, 9), cache);
    t.model->encode_source(pass, batch, cache);
    int64_t at = 0;
    for (const int64_t piece : {1, 4, 1, 1, 5}) {
      tensor::Tensor ids = t.ids({B, piece}, 1, 0);
      for (int64_t b = 0; b < B; ++b)
        for (int64_t i = 0; i < piece; ++i)
          ids.as<int32_t>()[b * piece + i] = batch.decoder_inputs.as<int32_t>()[b * T + at + i];
      const tensor::Tensor logits = t.model->extend(pass, ids, cache);
      at += piece;
      EXPECT_EQ(cache.length, at);
      for (int64_t b = 0; b < B; ++b)
        EXPECT_LT(autograd::distance(row(logits, b, 0, 1), row(whole, b, at - 1, T)), tolerance)
            << name_of(dtype) << " token " << at;
    }
  }
}

TEST(Generation, EncoderOnlyModelsCannotGenerate) {
  TestModel t(preset("bert-tiny").config, DType::f32);
  EXPECT_FALSE(t.model->can_generate());
}

}  // namespace
}  // namespace esp::model
