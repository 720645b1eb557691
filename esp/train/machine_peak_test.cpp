#include "esp/train/machine_peak.h"

#include <filesystem>
#include <fstream>

#include <gtest/gtest.h>
#include <nlohmann/json.hpp>

#include "esp/comm/communicator.h"
#include "esp/device/cpu/topology.h"
#include "esp/net/inproc/threads.h"
#include "esp/obs/file.h"
#include "esp/obs/temporary_folder.h"

namespace esp::train {
namespace {

void put(const std::string& path, const std::string& text) {
  std::ofstream(path) << text;
}

// Replaces the rate in the cache file by a value that no measurement can give.
void set_rate(const std::string& path, double rate) {
  Json json = Json::parse(obs::read_whole_file(path, 1 << 16));
  json["flops_per_s"] = rate;
  put(path, json.dump());
}

TEST(MachinePeak, MeasuresOnceAndThenReadsTheCache) {
  const obs::TemporaryFolder folder;
  const std::string cache = folder.path() + "/not/there/yet";
  const double rate = MachinePeak(cache, "1").cpu_peak(DType::f32, 1);
  EXPECT_GT(rate, 1e8);
  EXPECT_EQ(MachinePeak(cache, "1").cpu_peak(DType::f32, 1), rate);
  EXPECT_EQ(MachinePeak(cache, "1").cpu_peak(DType::bf16, 1), rate);  // bf16 computes in fp32, so the rate is the same
  set_rate(MachinePeak(cache, "1").path(DType::f32, 1), 12345);
  EXPECT_EQ(MachinePeak(cache, "1").cpu_peak(DType::f32, 1), 12345);
}

TEST(MachinePeak, MeasuresAgainWhenTheCacheDoesNotMatch) {
  const obs::TemporaryFolder folder;
  MachinePeak(folder.path(), "1").cpu_peak(DType::f32, 1);
  const std::string path = MachinePeak(folder.path(), "1").path(DType::f32, 1);
  set_rate(path, 12345);
  for (const auto& other :
       {MachinePeak(folder.path(), "2").path(DType::f32, 1), MachinePeak(folder.path(), "1").path(DType::f64, 1),
        MachinePeak(folder.path(), "1").path(DType::f32, 2)}) {
    EXPECT_NE(other, path);
    EXPECT_FALSE(std::filesystem::exists(other));
  }
  EXPECT_GT(MachinePeak(folder.path(), "2").cpu_peak(DType::f32, 1), 1e8);
  const Json whole = Json::parse(obs::read_whole_file(path, 1 << 16));
  Json other_key = whole, text = whole, negative = whole;
  other_key["key"] = "another CPU";
  text["flops_per_s"] = "12345";
  negative["flops_per_s"] = -1;
  for (const std::string& damaged : {std::string(), std::string("{"), std::string("[]"), whole.dump().substr(0, 20),
                                     other_key.dump(), text.dump(), negative.dump()}) {
    put(path, damaged);
    EXPECT_GT(MachinePeak(folder.path(), "1").cpu_peak(DType::f32, 1), 1e8) << damaged;
    EXPECT_GT(Json::parse(obs::read_whole_file(path, 1 << 16)).at("flops_per_s").get<double>(), 1e8) << damaged;
  }
}

TEST(MachinePeak, MeasuresWhenTheCacheIsNotWritable) {
  const obs::TemporaryFolder folder;
  put(folder.path() + "/file", "");
  EXPECT_GT(MachinePeak(folder.path() + "/file", "1").cpu_peak(DType::f32, 1), 1e8);
  EXPECT_GT(MachinePeak().cpu_peak(DType::f32, 1), 1e8);
}

TEST(MachinePeak, RefreshKeepsTheLargerRate) {
  const obs::TemporaryFolder folder;
  MachinePeak machine(folder.path(), "1");
  machine.cpu_peak(DType::f32, 1);
  set_rate(machine.path(DType::f32, 1), 1e30);
  EXPECT_EQ(machine.refresh(DType::f32, 1), 1e30);
  set_rate(machine.path(DType::f32, 1), 1);
  EXPECT_GT(machine.refresh(DType::f32, 1), 1e8);
}

// Several ranks on one host: threads beyond the number of cores do not count, and one rank measures for all ranks.
TEST(JobPeak, CountsEachCoreOfAHostOnce) {
  const obs::TemporaryFolder folder;
  const int cores = device::read_topology().usable_cores;
  for (const int num_ranks : {1, 2, 4}) {
    const int threads = std::min(num_ranks, cores);
    MachinePeak(folder.path(), "1").cpu_peak(DType::f32, threads);
    set_rate(MachinePeak(folder.path(), "1").path(DType::f32, threads), 1000.0 * threads);
    net::run_threads(num_ranks, [&](net::World& world) {
      const auto comm = comm::make_communicator(world, world.world_group(), {});
      JobContext job;
      job.ranks = comm.get();
      job.local_size = num_ranks;
      device::ThreadPool pool(1);
      device::Stream stream;
      stream.pool = &pool;
      MachinePeak machine(folder.path(), "1");
      EXPECT_EQ(job_peak_flops(job, DType::f32, stream, machine), 1000.0 * threads) << num_ranks;
    });
  }
}

}  // namespace
}  // namespace esp::train
