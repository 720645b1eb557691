#include "esp/train/device_context.h"

#include <gtest/gtest.h>

#include <fstream>

#include "esp/base/error.h"
#include "esp/device/is_cuda.h"
#include "esp/obs/temporary_folder.h"
#include "esp/train/device_batch.h"
#include "esp/train/engine.h"

namespace esp::train {
namespace {

TEST(DeviceContext, CpuHasThreadsAndNoQueue) {
  device::MemoryAccount account;
  device::ThreadPool threads(2);
  DeviceContext place("cpu", account);
  const device::Stream stream = place.stream(&threads);
  EXPECT_FALSE(device::is_cuda(stream));
  EXPECT_EQ(stream.num_threads(), 2);
  EXPECT_EQ(&place.memory(), &device::host_memory());
}

TEST(DeviceContext, RefusesAMissingGpu) {
  device::MemoryAccount account;
  const device::GpuSurvey survey = device::survey_gpus();
  if (!survey.gpus.empty()) GTEST_SKIP() << "this machine has a GPU";
  try {
    DeviceContext place("cuda", account);
    FAIL();
  } catch (const UsageError& error) {
    EXPECT_NE(std::string(error.what()).find(survey.problem), std::string::npos) << error.what();
  }
  EXPECT_THROW(DeviceContext("tpu", account), UsageError);
}

TEST(DeviceContext, RefusesNcclOnTheCpu) {
  const obs::TemporaryFolder folder;
  std::ofstream(folder / "text.txt") << std::string(20'000, 'a');
  RunConfig config = parse_run_config("", "run.toml", {"run.dir=" + (folder / "run"), "comm.transport=nccl"});
  config.data.train = {folder / "text.txt"};
  try {
    Engine engine(config, Log());
    FAIL();
  } catch (const UsageError& error) {
    EXPECT_NE(std::string(error.what()).find("needs GPUs"), std::string::npos) << error.what();
  }
}

data::Batch two_rows() {
  data::Batch batch;
  batch.B = 2;
  batch.shape = {3, 0, 3};
  batch.inputs = {1, 2, 3, 4, 5, 6};
  batch.targets = {2, 3, 4, 5, 6, 7};
  batch.lengths = {3, 2};
  return batch;
}

TEST(DeviceBatch, RowsReferenceGivenBatchOnCpu) {
  device::MemoryAccount account;
  device::MemoryPool pool(account);
  model::ModelConfig config;
  DeviceBatch placed({{}, &pool}, config);
  const data::Batch batch = two_rows();
  placed.load(batch);
  EXPECT_EQ(placed.num_rows(), 2);
  const model::ModelBatch second = placed.rows(1, 1, 3);
  EXPECT_EQ(second.inputs.data(), batch.inputs.data() + 3);
  EXPECT_EQ(second.inputs.shape().text(), "[1, 3]");
  EXPECT_EQ(second.targets.as<int32_t>()[0], 5);
  EXPECT_EQ(second.lengths.as<int32_t>()[0], 2);
  EXPECT_FALSE(placed.rows(0, 1, 3).lengths.defined()) << "rows without padding need no lengths";
  EXPECT_FALSE(second.decoder_inputs.defined());
}

}  // namespace
}  // namespace esp::train
