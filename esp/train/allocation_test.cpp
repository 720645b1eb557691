// After the first steps nothing allocates on the training thread, whatever the model, the precision and what is
// recomputed.
#include <gtest/gtest.h>

#include <cstdlib>
#include <fstream>
#include <new>

#include "esp/obs/temporary_folder.h"
#include "esp/train/engine.h"

#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
#define ESP_COUNTS_ALLOCATIONS 0  // the sanitizers bring an allocator of their own
#else
#define ESP_COUNTS_ALLOCATIONS 1

namespace {
thread_local uint64_t num_allocations = 0;
}

// Not inlined: seeing through one of a pair and not the other, the compiler takes them for mismatched.
[[gnu::noinline]] void* operator new(size_t bytes) {
  ++num_allocations;
  if (void* memory = std::malloc(bytes == 0 ? 1 : bytes)) return memory;
  throw std::bad_alloc();
}
[[gnu::noinline]] void operator delete(void* memory) noexcept {
  std::free(memory);
}
[[gnu::noinline]] void operator delete(void* memory, size_t) noexcept {
  std::free(memory);
}
#endif

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
    {"gpt in bf16", {"model.arch=gpt", "train.precision=bf16"}},
    {"gpt in fp16", {"model.arch=gpt", "train.precision=fp16"}},
    {"gpt by momentum", {"model.arch=gpt", "train.optimizer=sgd"}},
    {"llama",
     {"model.arch=llama", "model.norm=rms", "model.positions=rotary", "model.gated=true", "model.bias=false",
      "model.tie_embeddings=false", "model.kv_heads=1"}},
    {"bert", {"model.arch=bert", "model.post_norm=true"}},
    {"t5", {"model.arch=t5"}},
};
#endif

TEST(Allocation, HappensOnlyInTheFirstSteps) {
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
    const uint64_t before = num_allocations, reserved = engine.pool().reserved_bytes();
    for (int step = 0; step < 4; ++step) engine.step();
    EXPECT_EQ(num_allocations - before, 0u) << variant.name;
    EXPECT_EQ(engine.pool().reserved_bytes(), reserved) << variant.name;
  }
#else
  GTEST_SKIP() << "the sanitizers bring an allocator of their own";
#endif
}

}  // namespace
}  // namespace esp::train
