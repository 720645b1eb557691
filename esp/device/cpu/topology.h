// CPU topology and limits of this process: cores, caches, vector extensions, CPU quota, memory. The caller reads it
// once and passes it on. Reading changes nothing on the machine.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "esp/base/clock.h"
#include "esp/base/json.h"

namespace esp::device {

struct CpuTopology {
  std::string model;       // as in /proc/cpuinfo; empty if unknown
  std::vector<int> cores;  // logical cores this process may run on (its affinity)
  double quota_cores = 0;  // CPU quota of this process's control group, in cores; 0: no limit
  int usable_cores = 1;    // number of threads worth starting: the affinity, reduced to the quota, at least 1
  uint64_t l1d_bytes = 0, l2_bytes = 0, l3_bytes = 0;  // cache sizes of the first usable core; 0: unknown
  bool avx2 = false, avx512 = false, f16c = false, avx512_bf16 = false;
  uint64_t memory_bytes = 0;        // memory of the machine
  uint64_t memory_limit_bytes = 0;  // memory limit of this process's control group; 0: no limit
};

// `root` is a prefix for the paths /proc and /sys; tests set it.
CpuTopology read_topology(const std::string& root = "");
Json to_json(const CpuTopology& topology);

// Memory that the processes of this control group can still allocate without swapping.
uint64_t available_memory_bytes(const std::string& root = "");

// Core-to-core latency in ns: half the median round trip of a cache line between two threads, one pinned to each core.
// Below about 60 ns the cores share a cache; at hundreds of ns they do not. On a virtual machine the result may change
// between calls. Returns nullopt if the threads cannot use both cores before the deadline.
std::optional<double> core_latency_ns(int core_a, int core_b, Deadline deadline);
// Latency between the first two usable cores, measured in at most 100 ms. Returns nullopt if there is only one core.
std::optional<double> core_latency_ns();

}  // namespace esp::device
