#include "esp/device/cpu/topology.h"

#include <sched.h>

#include <algorithm>
#include <charconv>
#include <cmath>
#include <fstream>
#include <iterator>
#include <sstream>

#include <fmt/format.h>
#include <nlohmann/json.hpp>

namespace esp::device {
namespace {

// Reads a small file of /proc or /sys. A missing file reads as empty, which all callers treat as "unknown".
std::string text_of(const std::string& path) {
  std::ifstream file(path);
  return {std::istreambuf_iterator<char>(file), {}};
}

uint64_t number_in(std::string_view text) {
  uint64_t value = 0;
  size_t digit = text.find_first_of("0123456789");
  if (digit == std::string_view::npos) return 0;
  auto [end, error] = std::from_chars(text.data() + digit, text.data() + text.size(), value);
  if (error != std::errc()) return 0;
  if (end != text.data() + text.size() && (*end == 'K' || *end == 'k')) value <<= 10;
  if (end != text.data() + text.size() && *end == 'M') value <<= 20;
  return value;
}

// The text after `key` on the line that begins with it.
std::string line_after(const std::string& text, std::string_view key) {
  std::istringstream lines(text);
  for (std::string line; std::getline(lines, line);) {
    if (!line.starts_with(key)) continue;
    size_t colon = line.find(':');
    if (colon != std::string::npos) return line.substr(std::min(line.size(), colon + 2));
  }
  return "";
}

std::vector<int> affinity() {
  cpu_set_t set;
  CPU_ZERO(&set);
  std::vector<int> cores;
  if (sched_getaffinity(0, sizeof set, &set) == 0)
    for (int core = 0; core < CPU_SETSIZE; ++core)
      if (CPU_ISSET(core, &set)) cores.push_back(core);
  if (cores.empty()) cores.push_back(0);
  return cores;
}

// Path of this process's control group (cgroup). With cgroups v2 all controllers share one hierarchy; with cgroups v1
// the path is in the hierarchy of `controller`. Empty for the root group.
std::string group_path(const std::string& root, std::string_view controller) {
  std::istringstream lines(text_of(root + "/proc/self/cgroup"));
  std::string unified;
  for (std::string line; std::getline(lines, line);) {
    size_t first = line.find(':'), second = line.find(':', first + 1);
    if (second == std::string::npos) continue;
    std::string controllers = line.substr(first + 1, second - first - 1), path = line.substr(second + 1);
    if (path == "/") path.clear();
    if (controllers.empty()) unified = path;
    for (std::istringstream names(controllers); std::getline(names, line, ',');)
      if (line == controller) return fmt::format("/{}{}", controllers, path);
  }
  return unified;
}

// Calls `visit` for the group and all its parents up to the root. The limits of a parent also apply to its children.
template <typename F>
void each_level(std::string group, F&& visit) {
  for (;; group.resize(group.rfind('/'))) {
    visit(group);
    if (group.empty()) return;
  }
}

double smaller_limit(double limit, double other) {
  return limit == 0 ? other : std::min(limit, other);
}

double cpu_quota(const std::string& root) {
  double cores = 0;
  each_level(group_path(root, "cpu"), [&](const std::string& group) {
    std::string base = root + "/sys/fs/cgroup" + group;
    std::istringstream two(text_of(base + "/cpu.max"));  // quota and period: "max 100000" or "150000 100000"
    double quota = 0, period = 0;
    if (!(two >> quota >> period)) {
      quota = static_cast<double>(number_in(text_of(base + "/cpu.cfs_quota_us")));
      period = static_cast<double>(number_in(text_of(base + "/cpu.cfs_period_us")));
      if (text_of(base + "/cpu.cfs_quota_us").starts_with("-")) quota = 0;
    }
    if (quota > 0 && period > 0) cores = smaller_limit(cores, quota / period);
  });
  return cores;
}

uint64_t memory_limit(const std::string& root, uint64_t machine) {
  double limit = 0;
  each_level(group_path(root, "memory"), [&](const std::string& group) {
    for (const char* name : {"/memory.max", "/memory.limit_in_bytes"}) {
      uint64_t bytes = number_in(text_of(root + "/sys/fs/cgroup" + group + name));
      // cgroups v1 use a huge number for "no limit".
      if (bytes > 0 && bytes < machine) limit = smaller_limit(limit, static_cast<double>(bytes));
    }
  });
  return static_cast<uint64_t>(limit);
}

void read_caches(const std::string& root, CpuTopology& topology) {
  for (int i = 0; i < 8; ++i) {
    std::string base = fmt::format("{}/sys/devices/system/cpu/cpu{}/cache/index{}", root, topology.cores[0], i);
    uint64_t bytes = number_in(text_of(base + "/size"));
    std::string type = text_of(base + "/type");
    if (type.starts_with("Instruction")) continue;
    switch (number_in(text_of(base + "/level"))) {
      case 1:
        topology.l1d_bytes = bytes;
        break;
      case 2:
        topology.l2_bytes = bytes;
        break;
      case 3:
        topology.l3_bytes = bytes;
        break;
      default:
        break;
    }
  }
}

}  // namespace

CpuTopology read_topology(const std::string& root) {
  CpuTopology topology;
  topology.cores = affinity();
  topology.quota_cores = cpu_quota(root);
  int cores = static_cast<int>(topology.cores.size());
  if (topology.quota_cores > 0) cores = std::min(cores, static_cast<int>(std::ceil(topology.quota_cores)));
  topology.usable_cores = std::max(1, cores);
  read_caches(root, topology);

  std::string info = text_of(root + "/proc/cpuinfo");
  topology.model = line_after(info, "model name");
  std::string flags = fmt::format(" {} ", line_after(info, "flags"));
  auto has = [&](std::string_view flag) { return flags.find(fmt::format(" {} ", flag)) != std::string::npos; };
  topology.avx2 = has("avx2");
  topology.f16c = has("f16c");
  topology.avx512 = has("avx512f") && has("avx512bw") && has("avx512dq") && has("avx512vl");
  topology.avx512_bf16 = has("avx512_bf16");
  topology.memory_bytes = number_in(line_after(text_of(root + "/proc/meminfo"), "MemTotal")) << 10;
  topology.memory_limit_bytes = memory_limit(root, topology.memory_bytes);
  return topology;
}

uint64_t available_memory_bytes(const std::string& root) {
  uint64_t available = number_in(line_after(text_of(root + "/proc/meminfo"), "MemAvailable")) << 10;
  each_level(group_path(root, "memory"), [&](const std::string& group) {
    const std::string base = root + "/sys/fs/cgroup" + group;
    constexpr std::pair<const char*, const char*> kNames[] = {{"/memory.max", "/memory.current"},
                                                              {"/memory.limit_in_bytes", "/memory.usage_in_bytes"}};
    for (const auto& [limit_name, used_name] : kNames) {
      const uint64_t limit = number_in(text_of(base + limit_name));
      if (limit == 0) continue;
      uint64_t used = number_in(text_of(base + used_name));
      // Linux drops the file cache before processes run out of memory, so its bytes count as available.
      std::istringstream stat(text_of(base + "/memory.stat"));
      std::string name;
      for (uint64_t bytes = 0; stat >> name >> bytes;)
        if (name == "inactive_file" || name == "active_file") used -= std::min(used, bytes);
      available = std::min(available, limit - std::min(limit, used));
    }
  });
  return available;
}

Json to_json(const CpuTopology& topology) {
  return {{"model", topology.model},
          {"cores", topology.cores},
          {"quota_cores", topology.quota_cores},
          {"usable_cores", topology.usable_cores},
          {"l1d_bytes", topology.l1d_bytes},
          {"l2_bytes", topology.l2_bytes},
          {"l3_bytes", topology.l3_bytes},
          {"avx2", topology.avx2},
          {"avx512", topology.avx512},
          {"f16c", topology.f16c},
          {"avx512_bf16", topology.avx512_bf16},
          {"memory_bytes", topology.memory_bytes},
          {"memory_limit_bytes", topology.memory_limit_bytes}};
}

}  // namespace esp::device
