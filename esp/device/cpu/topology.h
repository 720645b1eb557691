// CPU topology, as far as this process may use it. Read once and passed on; changes nothing on the machine.
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
  double quota_cores = 0;  // CPU quota of its control group, in cores; 0: no limit
  int usable_cores = 1;    // threads worth starting: the affinity, cut to the quota, at least 1
  uint64_t l1d_bytes = 0, l2_bytes = 0, l3_bytes = 0;  // of the first usable core; 0: unknown
  bool avx2 = false, avx512 = false, f16c = false, avx512_bf16 = false;
  uint64_t memory_bytes = 0;        // of the machine
  uint64_t memory_limit_bytes = 0;  // of its control group; 0: no limit
};

// `root` is the prefix of /proc and /sys, for tests.
CpuTopology read_topology(const std::string& root = "");
Json to_json(const CpuTopology& topology);

// Memory that the processes of this control group can still allocate without swapping.
uint64_t available_memory_bytes(const std::string& root = "");

// Core-to-core latency in ns: half the median round trip of a cache line between two threads, each pinned to one of the
// cores. Below about 60 the cores share a cache ("near"); in the hundreds they do not ("far"). Two cores of a virtual
// machine may change between calls. Nothing if the cores cannot both be used within the deadline.
std::optional<double> core_latency_ns(int core_a, int core_b, Deadline deadline);
// Between the first two usable cores, in at most 100 ms; nothing on one core.
std::optional<double> core_latency_ns();

}  // namespace esp::device
