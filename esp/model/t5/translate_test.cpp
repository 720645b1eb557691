// An encoder–decoder trained on a few phrases must reproduce their translations token by token.
#include <gtest/gtest.h>

#include <algorithm>

#include "esp/model/testing.h"

namespace esp::model {
namespace {

constexpr int32_t kBegin = 1, kEnd = 2, kPad = 0;
constexpr int64_t kLength = 24;
constexpr std::pair<std::string_view, std::string_view> kPhrases[] = {
    {"How are you?", "你好嗎"}, {"Good morning", "早安"}, {"Thank you", "謝謝"}, {"How old are you?", "你幾歲"}};
constexpr int64_t kNumPhrases = std::size(kPhrases);

int32_t byte_at(std::string_view text, int64_t i) {
  return static_cast<unsigned char>(text[static_cast<size_t>(i)]);
}

tensor::Tensor padded(TestModel& t, int32_t with) {
  tensor::Tensor ids = t.ids({kNumPhrases, kLength}, 1, 0);
  std::fill_n(ids.as<int32_t>(), ids.count(), with);
  return ids;
}

ModelBatch phrases(TestModel& t) {
  ModelBatch batch;
  batch.inputs = padded(t, kPad);
  batch.decoder_inputs = padded(t, kPad);
  batch.targets = padded(t, -1);
  batch.lengths = t.ids({kNumPhrases}, 1, 0);
  for (int64_t p = 0; p < kNumPhrases; ++p) {
    const auto& [source, target] = kPhrases[p];
    const auto length = static_cast<int64_t>(target.size());
    batch.lengths.as<int32_t>()[p] = static_cast<int32_t>(source.size());
    for (int64_t i = 0; i < static_cast<int64_t>(source.size()); ++i)
      batch.inputs.as<int32_t>()[p * kLength + i] = byte_at(source, i);
    for (int64_t i = 0; i <= length; ++i) {
      batch.decoder_inputs.as<int32_t>()[p * kLength + i] = i == 0 ? kBegin : byte_at(target, i - 1);
      batch.targets.as<int32_t>()[p * kLength + i] = i == length ? kEnd : byte_at(target, i);
    }
  }
  return batch;
}

// Greedy decoding of all phrases at once.
std::vector<std::string> translate(TestModel& t, ModelBatch batch) {
  nn::ForwardContext pass = t.pass();
  batch.decoder_inputs = padded(t, kPad);
  std::vector<std::string> decoded(kNumPhrases);
  std::vector<bool> done(kNumPhrases);
  for (int64_t p = 0; p < kNumPhrases; ++p) batch.decoder_inputs.as<int32_t>()[p * kLength] = kBegin;
  for (int64_t at = 0; at + 1 < kLength; ++at) {
    const tensor::Tensor logits = t.model->logits_of(pass, batch);
    const int64_t V = logits.dim(-1);
    for (int64_t p = 0; p < kNumPhrases; ++p) {
      const float* row = logits.as<float>() + (p * kLength + at) * V;
      const auto token = static_cast<int32_t>(std::max_element(row, row + V) - row);
      batch.decoder_inputs.as<int32_t>()[p * kLength + at + 1] = token;
      done[static_cast<size_t>(p)] = done[static_cast<size_t>(p)] || token == kEnd;
      if (!done[static_cast<size_t>(p)]) decoded[static_cast<size_t>(p)].push_back(static_cast<char>(token));
    }
  }
  return decoded;
}

TEST(EncoderDecoder, ReproducesTrainedPhrases) {
  TestModel t(preset("t5-tiny").config, DType::f32);
  const ModelBatch batch = phrases(t);
  const auto before = translate(t, batch);
  TestAdam adam(t);
  for (int step = 0; step < 150; ++step) adam.step(batch, 3e-3);
  const auto after = translate(t, batch);
  for (size_t p = 0; p < kNumPhrases; ++p) {
    EXPECT_NE(before[p], kPhrases[p].second);
    EXPECT_EQ(after[p], kPhrases[p].second);
  }
}

}  // namespace
}  // namespace esp::model
