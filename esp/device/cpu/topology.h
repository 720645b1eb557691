// What this machine's processor is, as far as this process may use it. Read once and passed on; nothing here changes
// the machine.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "esp/base/clock.h"
#include "esp/base/json.h"

namespace esp::device {

struct Topology {
  std::string model;       // as the kernel names it; empty when it does not
  std::vector<int> cores;  // logical cores this process may run on (its affinity)
  double quota_cores = 0;  // cores' worth of time its control group allows; 0: no limit
  int usable_cores = 1;    // threads worth starting: the affinity, cut to the quota, at least 1
  uint64_t l1d_bytes = 0, l2_bytes = 0, l3_bytes = 0;  // of the first usable core; 0: unknown
  bool avx2 = false, avx512 = false, f16c = false, avx512_bf16 = false;
  uint64_t memory_bytes = 0;        // of the machine
  uint64_t memory_limit_bytes = 0;  // of its control group; 0: no limit
};

// `root` is where /proc, /sys and so on are looked for, so that tests can bring their own.
Topology read_topology(const std::string& root = "");
Json to_json(const Topology& topology);

// Time for one cache line to go from one core to another, in nanoseconds: half the median round trip of a line that two
// threads, each pinned to one of the cores, hand to each other. Below about 60 the cores share a cache ("near"); in the
// hundreds they do not ("far"). Two cores of a virtual machine may change from one to the other between calls. Nothing
// when the cores cannot both be had within the deadline.
std::optional<double> handover_ns(int core_a, int core_b, Deadline deadline);
// Between the first two usable cores, in at most 100 ms; nothing on one core.
std::optional<double> handover_ns();

}  // namespace esp::device
