// After the first steps of a run the training thread allocates no memory, for any model, precision and recompute mode.
#include <gtest/gtest.h>

#include <fstream>

#include "esp/base/allocation_counter.h"
#include "esp/obs/temporary_folder.h"
#include "esp/train/engine.h"

namespace esp::train {
namespace {

#if ESP_COUNTS_ALLOCATIONS
struct Variant {
  const char* name;
  std::vector<std::string> overrides;
};

const Variant kVariants[] = {
    {"gpt", {"model.arch=gpt"}},
    {"gpt in micro-batches", {"model.arch=gpt", "train.micro_batch=2"}},
    {"gpt with dropout", {"model.arch=gpt", "model.dropout=0.1"}},
    {"gpt, selective", {"model.arch=gpt", "train.recompute=selective"}},
    {"gpt, full", {"model.arch=gpt", "train.recompute=full"}},
    {"gpt, textbook", {"model.arch=gpt", "model.dropout=0.1", "train.activations=textbook"}},
    {"gpt, textbook and selective", {"train.activations=textbook", "model.dropout=0.1", "train.recompute=selective"}},
    {"gpt in bf16", {"model.arch=gpt", "train.precision=bf16"}},
    {"gpt in fp16", {"model.arch=gpt", "train.precision=fp16"}},
    {"gpt with sgd", {"model.arch=gpt", "train.optimizer=sgd"}},
    {"llama",
     {"model.arch=llama", "model.norm=rms", "model.positions=rotary", "model.gated=true", "model.bias=false",
      "model.tie_embeddings=false", "model.kv_heads=1"}},
    {"gpt with experts", {"model.moe.experts=4", "model.moe.z_loss=0.1", "model.moe.shared=16"}},
    {"gpt with a capacity limit of the experts, full",
     {"model.moe.experts=4", "model.moe.capacity_factor=1", "train.recompute=full"}},
    {"bert", {"model.arch=bert", "model.post_norm=true"}},
    {"t5", {"model.arch=t5"}},
};
#endif

TEST(TrainAllocation, StopsAfterFirstSteps) {
#if ESP_COUNTS_ALLOCATIONS
  const obs::TemporaryFolder folder;
  std::ofstream(folder / "text.txt") << std::string(20'000, 'a') << std::string(20'000, 'b');
  for (const Variant& variant : kVariants) {
    std::vector<std::string> overrides = {"train.global_batch=4", "run.threads=2", "run.dir=" + (folder / "run")};
    overrides.insert(overrides.end(), variant.overrides.begin(), variant.overrides.end());
    RunConfig config = parse_run_config("", "run.toml", overrides);
    config.data.train = {folder / "text.txt"};
    Engine engine(config, Log());
    for (int step = 0; step < 2; ++step) engine.step();
    const uint64_t before = thread_allocations, reserved = engine.pool().reserved_bytes();
    for (int step = 0; step < 4; ++step) engine.step();
    EXPECT_EQ(thread_allocations - before, 0u) << variant.name;
    EXPECT_EQ(engine.pool().reserved_bytes(), reserved) << variant.name;
  }
#else
  GTEST_SKIP() << "a build with a sanitizer does not count allocations";
#endif
}

}  // namespace
}  // namespace esp::train
