#include "esp/train/memory_budget.h"

#include <gtest/gtest.h>

namespace esp::train {
namespace {

// A model of three units with 100, 400 and 300 elements, in bf16.
struct Model {
  Model() {
    for (const int64_t count : {100, 400, 300}) {
      list.begin_unit("unit" + std::to_string(count));
      list.add("p" + std::to_string(count), {count}, nn::Init::zeros(), false);
    }
  }
  nn::ParameterList list;
};

RunConfig config_of(const char* method, const char* offload = "none", const char* params = "none") {
  RunConfig config;
  config.train.precision = "bf16";
  config.sync.method = method;
  config.sync.offload = offload;
  config.sync.offload_params = params;
  return config;
}

TEST(MemoryBudget, LowerBoundDependsOnSyncMethod) {
  const Model model;
  const auto least = [&](const RunConfig& config) { return min_device_bytes(config, model.list, 4); };
  EXPECT_EQ(least(config_of("allreduce")), 2 * (800u + 800));
  EXPECT_EQ(least(config_of("zero2")), 2 * (800u + 200 + 400));
  EXPECT_EQ(least(config_of("zero3")), 2 * (200u + 400 + 200 + 400));
  EXPECT_EQ(least(config_of("zero3", "host")), 2 * (200u + 400 + 400));
  EXPECT_EQ(least(config_of("zero3", "host", "file")), 2 * (400u + 400));
}

TEST(MemoryBudget, RejectsRunThatDoesNotFitAndNamesLargestUnit) {
  const Model model;
  RunConfig config = config_of("zero3", "host", "host");
  config.run.device_memory_mb = 1600.0 / (1 << 20);
  EXPECT_NO_THROW(check_memory_budget(config, model.list, 1));
  config.run.device_memory_mb = 1599.0 / (1 << 20);
  try {
    check_memory_budget(config, model.list, 1);
    FAIL();
  } catch (const UsageError& error) {
    const std::string said = error.what();
    for (const char* word : {"run.device_memory_mb", "unit400", "at least", "sync.prefetch = 0"})
      EXPECT_NE(said.find(word), std::string::npos) << said;
  }
  config.run.device_memory_mb = 0;  // 0 means that there is no limit
  EXPECT_NO_THROW(check_memory_budget(config, model.list, 1));
}

TEST(MemoryBudget, ExplainsAnAllocationFailure) {
  const Model model;
  RunConfig config = config_of("allreduce");
  config.run.device_memory_mb = 2;
  device::MemoryAccount account;
  const DeviceError met("met");
  // the error is not about memory, and there is no budget
  EXPECT_NO_THROW(throw_if_over_budget(config, model.list, account, met, 0));
  account.set_budget(device::MemoryTier::device, 2 << 20);
  EXPECT_THROW(throw_if_over_budget(config, model.list, account, met, 0), UsageError);
  try {
    throw_if_over_budget(config, model.list, account, met, 3 << 20);
    FAIL();
  } catch (const UsageError& error) {
    EXPECT_NE(std::string(error.what()).find("at least 3.01"), std::string::npos) << error.what();
  }
}

}  // namespace
}  // namespace esp::train
