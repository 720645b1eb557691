#include "esp/device/cpu/topology.h"

#include <sched.h>
#include <stdlib.h>

#include <filesystem>
#include <fstream>

#include <gtest/gtest.h>
#include <nlohmann/json.hpp>

namespace esp::device {
namespace {

// Simulated /proc and /sys.
class FakeRoot {
 public:
  FakeRoot() {
    std::string pattern = (std::filesystem::temp_directory_path() / "espalier-root-XXXXXX").string();
    path_ = mkdtemp(pattern.data());
  }
  ~FakeRoot() {
    std::error_code ignored;
    std::filesystem::remove_all(path_, ignored);
  }
  void put(const std::string& name, const std::string& text) {
    std::filesystem::create_directories(std::filesystem::path(path_ + name).parent_path());
    std::ofstream(path_ + name) << text;
  }
  const std::string& path() const { return path_; }

 private:
  std::string path_;
};

TEST(CpuTopology, ReadsConsistentValuesOnThisMachine) {
  CpuTopology here = read_topology();
  cpu_set_t set;
  ASSERT_EQ(sched_getaffinity(0, sizeof set, &set), 0);
  EXPECT_EQ(static_cast<int>(here.cores.size()), CPU_COUNT(&set));
  EXPECT_GE(here.usable_cores, 1);
  EXPECT_LE(here.usable_cores, static_cast<int>(here.cores.size()));
  EXPECT_GT(here.memory_bytes, uint64_t{1} << 20);
  EXPECT_TRUE(here.avx2 || !here.avx512);
  EXPECT_EQ(to_json(here)["usable_cores"], here.usable_cores);
}

TEST(CpuTopology, ReadsFlagsCachesAndMemory) {
  FakeRoot root;
  root.put("/proc/cpuinfo", "processor : 0\nmodel name\t: Walnut 9\nflags\t\t: sse avx2 f16c avx512f avx512bw\n\n");
  root.put("/proc/meminfo", "MemTotal:       2048 kB\nMemFree: 1 kB\n");
  std::string cache = "/sys/devices/system/cpu/cpu" + std::to_string(read_topology().cores[0]) + "/cache/index";
  root.put(cache + "0/size", "48K\n"), root.put(cache + "0/level", "1\n"), root.put(cache + "0/type", "Data\n");
  root.put(cache + "1/size", "32K\n"), root.put(cache + "1/level", "1\n"), root.put(cache + "1/type", "Instruction\n");
  root.put(cache + "2/size", "2M\n"), root.put(cache + "2/level", "2\n"), root.put(cache + "2/type", "Unified\n");
  CpuTopology topology = read_topology(root.path());
  EXPECT_EQ(topology.model, "Walnut 9");
  EXPECT_TRUE(topology.avx2 && topology.f16c);
  EXPECT_FALSE(topology.avx512);  // some required features are missing
  EXPECT_EQ(topology.l1d_bytes, 48u << 10);
  EXPECT_EQ(topology.l2_bytes, 2u << 20);
  EXPECT_EQ(topology.l3_bytes, 0u);
  EXPECT_EQ(topology.memory_bytes, 2048u << 10);
}

TEST(CpuTopology, UsesTightestCgroupLimit) {
  FakeRoot root;
  root.put("/proc/meminfo", "MemTotal: 1048576 kB\n");
  root.put("/proc/self/cgroup", "0::/job/step\n");
  root.put("/sys/fs/cgroup/job/step/cpu.max", "max 100000\n");
  root.put("/sys/fs/cgroup/job/cpu.max", "50000 100000\n");
  root.put("/sys/fs/cgroup/job/memory.max", "536870912\n");
  root.put("/sys/fs/cgroup/job/step/memory.max", "max\n");
  CpuTopology topology = read_topology(root.path());
  EXPECT_EQ(topology.quota_cores, 0.5);
  EXPECT_EQ(topology.usable_cores, 1);
  EXPECT_EQ(topology.memory_limit_bytes, uint64_t{512} << 20);
}

TEST(CpuTopology, LimitsAvailableMemoryByTightestCgroup) {
  FakeRoot root;
  root.put("/proc/meminfo", "MemTotal: 1048576 kB\nMemAvailable: 800000 kB\n");
  root.put("/proc/self/cgroup", "0::/job\n");
  EXPECT_EQ(available_memory_bytes(root.path()), uint64_t{800'000} << 10);
  root.put("/sys/fs/cgroup/job/memory.max", "max\n");
  EXPECT_EQ(available_memory_bytes(root.path()), uint64_t{800'000} << 10);
  root.put("/sys/fs/cgroup/job/memory.max", "500000\n");
  root.put("/sys/fs/cgroup/job/memory.current", "300000\n");
  root.put("/sys/fs/cgroup/job/memory.stat", "anon 100000\ninactive_file 40000\nactive_file 60000\n");
  EXPECT_EQ(available_memory_bytes(root.path()), 300'000u);
}

TEST(CpuTopology, ReadsCgroupsV1) {
  FakeRoot root;
  root.put("/proc/meminfo", "MemTotal: 1048576 kB\n");
  root.put("/proc/self/cgroup", "4:memory:/j\n3:cpu,cpuacct:/j\n");
  root.put("/sys/fs/cgroup/cpu,cpuacct/j/cpu.cfs_quota_us", "150000\n");
  root.put("/sys/fs/cgroup/cpu,cpuacct/j/cpu.cfs_period_us", "100000\n");
  root.put("/sys/fs/cgroup/memory/j/memory.limit_in_bytes", "9223372036854771712\n");
  EXPECT_EQ(read_topology(root.path()).quota_cores, 1.5);
  EXPECT_EQ(read_topology(root.path()).memory_limit_bytes, 0u);
  root.put("/sys/fs/cgroup/cpu,cpuacct/j/cpu.cfs_quota_us", "-1\n");
  EXPECT_EQ(read_topology(root.path()).quota_cores, 0);
}

TEST(CpuTopology, ReportsUnknownWhenFilesAreMissing) {
  CpuTopology topology = read_topology("/nowhere/at/all");
  EXPECT_GE(topology.usable_cores, 1);
  EXPECT_EQ(topology.l3_bytes, 0u);
  EXPECT_EQ(topology.memory_bytes, 0u);
}

TEST(CoreLatency, ReturnsPositiveNsOrNulloptAndKeepsCallerAffinity) {
  cpu_set_t before, after;
  ASSERT_EQ(sched_getaffinity(0, sizeof before, &before), 0);
  auto ns = core_latency_ns();
  EXPECT_GT(ns.value_or(1), 0);
  ASSERT_EQ(sched_getaffinity(0, sizeof after, &after), 0);
  EXPECT_TRUE(CPU_EQUAL(&before, &after));
}

TEST(CoreLatency, ReturnsNulloptForSameOrMissingCore) {
  int core = read_topology().cores[0];
  EXPECT_FALSE(core_latency_ns(core, core, Deadline::after_ms(1000)));
  EXPECT_FALSE(core_latency_ns(core, 1023, Deadline::after_ms(1000)));
  EXPECT_FALSE(core_latency_ns(-1, core, Deadline::after_ms(1000)));
  EXPECT_FALSE(core_latency_ns(1'000'000, core, Deadline::after_ms(1000)));
}

TEST(CoreLatency, ReturnsNulloptAfterDeadline) {
  std::vector<int> cores = read_topology().cores;
  if (cores.size() < 2) GTEST_SKIP() << "needs two cores";
  EXPECT_FALSE(core_latency_ns(cores[0], cores[1], Deadline::after_ms(-1000)).has_value());
}

}  // namespace
}  // namespace esp::device
