#include "esp/train/machine_peak.h"

#include <algorithm>
#include <cmath>
#include <filesystem>
#include <functional>
#include <set>
#include <vector>

#include <fmt/format.h>
#include <nlohmann/json.hpp>

#include "esp/base/error.h"
#include "esp/base/json.h"
#include "esp/device/cpu/topology.h"
#include "esp/device/is_cuda.h"
#include "esp/kernel/peak.h"
#include "esp/obs/file.h"
#include "esp/train/gather_texts.h"

namespace esp::train {
namespace {

constexpr size_t kMaxFileBytes = 4096;
constexpr const char* kBootId = "/proc/sys/kernel/random/boot_id";

double measure(DType dtype, int num_threads) {
  device::ThreadPool pool(num_threads);
  device::Stream stream;
  stream.pool = &pool;
  return kernel::fma_peak(dtype, stream);
}

// This rank's compute resources as JSON; the ranks exchange these texts.
Json resources(const device::Stream& stream) {
  if (device::is_cuda(stream)) return {{"gpu", true}};
  const device::CpuTopology topology = device::read_topology();
  std::string host;
  try {
    host = obs::read_whole_file(kBootId, kMaxFileBytes);
  } catch (const IoError&) {
    host = topology.model;  // without a boot id, hosts with the same CPU model count as one host
  }
  return {{"gpu", false},
          {"host", host},
          {"threads", stream.num_threads()},
          {"cores", topology.cores},
          {"quota", topology.quota_cores}};
}

// The CPU ranks on this rank's host. `first` is the rank that measures for all of them; `num_threads` is the number of
// threads that they use together.
struct HostShare {
  size_t first = 0;
  int num_threads = 0;
};

HostShare share_of(const std::vector<Json>& all, const Json& mine) {
  HostShare share{all.size(), 0};
  std::set<int> cores;
  int64_t threads = 0;
  for (size_t i = 0; i < all.size(); ++i) {
    if (all[i].at("gpu").get<bool>() || all[i].at("host") != mine.at("host")) continue;
    share.first = std::min(share.first, i);
    threads += all[i].at("threads").get<int>();
    for (const Json& core : all[i].at("cores")) cores.insert(core.get<int>());
  }
  auto most = static_cast<double>(std::max<size_t>(1, cores.size()));
  if (const double quota = mine.at("quota").get<double>(); quota > 0) most = std::min(most, std::max(1.0, quota));
  share.num_threads = static_cast<int>(std::min(static_cast<double>(threads), most));
  return share;
}

}  // namespace

std::string MachinePeak::key(DType dtype, int num_threads) const {
  return fmt::format("{}; {}; {} threads; {}; espalier {}", device::read_topology().model, kernel::cpu_instructions(),
                     num_threads, name_of(dtype == DType::f64 ? DType::f64 : DType::f32), version_);
}

std::string MachinePeak::path(DType dtype, int num_threads) const {
  if (folder_.empty()) return {};
  return fmt::format("{}/peak-{:016x}.json", folder_, std::hash<std::string>()(key(dtype, num_threads)));
}

double MachinePeak::read(DType dtype, int num_threads) const {
  if (folder_.empty()) return 0;
  try {
    const std::string file = path(dtype, num_threads);
    const Json json = parse_json(obs::read_whole_file(file, kMaxFileBytes), file);
    if (json.at("key") != key(dtype, num_threads)) return 0;
    const double rate = json.at("flops_per_s").get<double>();
    return std::isfinite(rate) && rate > 0 ? rate : 0;
  } catch (const Error&) {
    return 0;
  } catch (const nlohmann::json::exception&) {
    return 0;
  }
}

void MachinePeak::write(DType dtype, int num_threads, double rate) const {
  if (folder_.empty()) return;
  try {
    std::filesystem::create_directories(folder_);
    const Json json = {{"key", key(dtype, num_threads)}, {"flops_per_s", rate}};
    obs::write_whole_file(path(dtype, num_threads), json.dump(2) + "\n");
  } catch (const Error&) {
  } catch (const std::filesystem::filesystem_error&) {
  }
}

double MachinePeak::cpu_peak(DType dtype, int num_threads) {
  double& rate = known_[{dtype == DType::f64, num_threads}];
  if (rate > 0) return rate;
  rate = read(dtype, num_threads);
  return rate > 0 ? rate : refresh(dtype, num_threads);
}

double MachinePeak::refresh(DType dtype, int num_threads) {
  const double before = read(dtype, num_threads), now = measure(dtype, num_threads);
  if (now > before) write(dtype, num_threads, now);
  return known_[{dtype == DType::f64, num_threads}] = std::max(before, now);
}

double job_peak_flops(const JobContext& job, DType dtype, const device::Stream& stream, MachinePeak& machine) {
  const Json mine = resources(stream);
  std::vector<Json> all;
  for (const std::string& text : gather_texts(job.ranks, mine.dump())) all.push_back(Json::parse(text));
  double own = 0;
  if (mine.at("gpu").get<bool>()) {
    own = kernel::fma_peak(dtype, stream);
  } else if (const HostShare share = share_of(all, mine); share.first == static_cast<size_t>(job.rank())) {
    // This rank may be bound to fewer cores than the ranks of the host use together. Then it measures its own cores and
    // scales the result up.
    const int threads = std::min(share.num_threads, device::read_topology().usable_cores);
    own = machine.cpu_peak(dtype, threads) / threads * share.num_threads;
  }
  if (job.ranks) job.ranks->all_reduce(&own, &own, 1, DType::f64, comm::ReduceOp::sum);
  return own;
}

}  // namespace esp::train
