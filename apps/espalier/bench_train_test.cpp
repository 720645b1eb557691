#include "apps/espalier/bench_train.h"
#include "apps/espalier/bench_train_layouts.h"

#include <gtest/gtest.h>
#include <unistd.h>

#include <nlohmann/json.hpp>

#include "esp/base/error.h"
#include "esp/model/model.h"

namespace esp::app {
namespace {

TEST(BenchTrain, ParsesLlmcOutput) {
  LlmcResult result;
  for (const char* line : {"num_activations: 131430400", "step 3: train loss 4.062500 (took 812.500000 ms)",
                           "val loss 5.325", "step 3: train loss nothing"})
    read_llmc_line(line, result);
  EXPECT_EQ(result.step_s, std::vector<double>{0.8125});
  EXPECT_DOUBLE_EQ(result.loss, 4.0625);
  EXPECT_EQ(result.activations, 131430400u);
}

// The expected numbers were printed by llm.c's CPU program.
TEST(BenchTrain, CountsLlmcActivationsForBatchAndLength) {
  const TrainCase small{.name = "gpt2-124m", .model = model::preset("gpt2-124m").config, .batch = 4, .seq = 64};
  EXPECT_EQ(llmc_activations(small), 73347840u);
  const TrainCase usual{.name = "gpt2-124m", .model = model::preset("gpt2-124m").config, .batch = 2, .seq = 512};
  EXPECT_EQ(llmc_activations(usual), 425511936u);
}

TEST(BenchTrain, JsonRowsHaveDocumentedFields) {
  const Json row = to_json(TrainRow{});
  std::vector<std::string> keys;
  for (const auto& [key, value] : row.items()) keys.push_back(key);
  EXPECT_EQ(keys, (std::vector<std::string>{"library", "model", "device", "precision", "tokens_per_s", "step_ms_median",
                                            "tflops", "mfu", "peak_bytes", "parameters", "threads", "ranks"}));
}

TEST(BenchTrain, PeakResidentBytesGrowWithTouchedMemory) {
  const uint64_t before = peak_resident_bytes(::getpid());
  const std::vector<char> memory(size_t{256} << 20, 'x');
  EXPECT_GE(peak_resident_bytes(::getpid()), std::max<uint64_t>(before, memory.size()));
  EXPECT_EQ(peak_resident_bytes(-1), 0u);
}

TEST(BenchTrain, SetsDefaultShapesPerModel) {
  TrainCase large{.name = "gpt2-124m", .model = model::preset("gpt2-124m").config};
  set_usual_shape(large);
  EXPECT_EQ(large.batch, 2);
  EXPECT_EQ(large.seq, 512);
  TrainCase small{.name = "gpt-6x384", .model = model::preset("gpt-6x384").config};
  set_usual_shape(small);
  EXPECT_EQ(small.tokens_per_step(), 8 * 256);
}

TEST(BenchTrain, RejectsMissingLlmcProgram) {
  EXPECT_THROW(run_llmc("/nowhere/train_gpt2", 1, 2, Deadline::after_ms(1000)), UsageError);
  EXPECT_THROW(run_llmc("/tmp", 1, 2, Deadline::after_ms(1000)), UsageError);
}

TEST(BenchLayouts, AddParallelSectionToKeysWithoutSection) {
  EXPECT_EQ(layout_settings("tp=2"), std::vector<std::string>{"parallel.tp=2"});
  EXPECT_EQ(layout_settings("pp=2,train.micro_batch=1"),
            (std::vector<std::string>{"parallel.pp=2", "train.micro_batch=1"}));
  EXPECT_THROW(layout_settings("tp2"), UsageError);
}

}  // namespace
}  // namespace esp::app
