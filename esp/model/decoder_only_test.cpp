#include <gtest/gtest.h>

#include <cmath>

#include "esp/model/model.h"
#include "esp/model/testing.h"

namespace esp::model {
namespace {

TEST(DecoderOnly, LossBeginsNearTheLogOfTheVocabulary) {
  for (const char* name : {"gpt-tiny", "llama-tiny"}) {
    TestModel t(preset(name).config, DType::f32);
    const Batch batch = t.random_batch(2, 16);
    auto pass = t.pass();
    const autograd::Loss loss = t.model->forward(pass, batch, 1.0 / 32);
    EXPECT_NEAR(tensor::item(loss.total.value()) / 32, std::log(256.0), 0.1) << name;
    autograd::backward(*pass.tape, loss);
    t.tape.clear();
    double squares = 0;
    for (const auto& unit : t.model->parameters().units())
      for (float g : unit.grads.span<float>()) squares += double{g} * g;
    EXPECT_GT(squares, 0) << name;
  }
}

}  // namespace
}  // namespace esp::model
