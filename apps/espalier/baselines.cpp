#include "apps/espalier/baselines.h"

#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>

#include <fmt/format.h>

#include "apps/espalier/machine.h"
#include "esp/base/error.h"
#include "esp/base/table.h"

namespace esp::app {
namespace {

using Arguments = std::vector<std::string>;

// Forces segmented ring and pipeline algorithms instead of Open MPI's decision rules.
const Arguments kRingRules = {"--mca",
                              "coll_tuned_use_dynamic_rules",
                              "1",
                              "--mca",
                              "coll_tuned_allreduce_algorithm",
                              "5",
                              "--mca",
                              "coll_tuned_allreduce_algorithm_segmentsize",
                              "262144",
                              "--mca",
                              "coll_tuned_reduce_scatter_algorithm",
                              "3",
                              "--mca",
                              "coll_tuned_allgather_algorithm",
                              "4",
                              "--mca",
                              "coll_tuned_bcast_algorithm",
                              "3",
                              "--mca",
                              "coll_tuned_bcast_algorithm_segmentsize",
                              "131072",
                              "--mca",
                              "coll_tuned_alltoall_algorithm",
                              "2"};

Arguments joined(Arguments first, const Arguments& second) {
  first.insert(first.end(), second.begin(), second.end());
  return first;
}

const BaselineRow kBaselines[] = {
    {"openmpi", "openmpi", "default", "shm", "espalier-peer-openmpi", "mpirun.openmpi", {}, false},
    {"openmpi-tuned",
     "openmpi",
     "ucx",
     "shm",
     "espalier-peer-openmpi",
     "mpirun.openmpi",
     {"--mca", "pml", "ucx", "--mca", "opal_common_ucx_tls", "any", "--mca", "opal_common_ucx_devices", "any"},
     true},
    {"openmpi-tuned",
     "openmpi",
     "vader",
     "shm",
     "espalier-peer-openmpi",
     "mpirun.openmpi",
     {"--mca", "pml", "ob1", "--mca", "btl", "self,vader"},
     true},
    {"openmpi-tuned", "openmpi", "ring", "shm", "espalier-peer-openmpi", "mpirun.openmpi",
     joined({"--mca", "pml", "ob1", "--mca", "btl", "self,vader"}, kRingRules), true, true},
    {"openmpi-tcp",
     "openmpi",
     "tcp",
     "tcp",
     "espalier-peer-openmpi",
     "mpirun.openmpi",
     {"--mca", "pml", "ob1", "--mca", "btl", "self,tcp"},
     true},
    {"openmpi-tcp", "openmpi", "tcp-ring", "tcp", "espalier-peer-openmpi", "mpirun.openmpi",
     joined({"--mca", "pml", "ob1", "--mca", "btl", "self,tcp"}, kRingRules), true, true},
    {"mpich", "mpich", "default", "shm", "espalier-peer-mpich", "mpirun.mpich", {}, true},
    {"gloo", "gloo", "ring", "tcp", "espalier-peer-gloo", "", {"ring"}, true},
    {"gloo", "gloo", "bcube", "tcp", "espalier-peer-gloo", "", {"bcube"}, true},
    {"gloo", "gloo", "halving", "tcp", "espalier-peer-gloo", "", {"halving"}, true},
};

bool available(const BaselineRow& row) {
  return !baseline_path(row.program).empty() &&
         (row.launcher.empty() || !find_program(std::string(row.launcher)).empty());
}

Arguments launcher_command(const BaselineRow& row, int num_ranks) {
  if (row.launcher == "mpirun.mpich") return {std::string(row.launcher), "-n", std::to_string(num_ranks)};
  Arguments command = {std::string(row.launcher), "--allow-run-as-root", "--oversubscribe", "--bind-to", "none", "-n",
                       std::to_string(num_ranks)};
  // With more ranks than cores, ranks that busy-wait take the core of the rank they wait for. Tuned variants therefore
  // yield the core while they wait.
  if (row.variant != "default" && num_ranks > usable_cores())
    command = joined(command, {"--mca", "mpi_yield_when_idle", "1"});
  return joined(command, row.arguments);
}

}  // namespace

std::span<const BaselineRow> baselines() {
  return kBaselines;
}

std::string baseline_path(std::string_view name) {
  std::string own = executable_path();
  std::string folder = own.substr(0, own.rfind('/'));
  for (const std::string& path :
       {fmt::format("{}/{}", folder, name), fmt::format("{}/../libexec/espalier/{}", folder, name)})
    if (::access(path.c_str(), X_OK) == 0) return path;
  return "";
}

std::vector<std::string> built_baselines() {
  std::vector<std::string> names;
  for (const BaselineRow& row : kBaselines)
    if (available(row) && (names.empty() || names.back() != row.name)) names.emplace_back(row.name);
  return names;
}

std::vector<const BaselineRow*> choose_baselines(const std::vector<std::string>& names) {
  bool all = std::find(names.begin(), names.end(), "all") != names.end();
  std::vector<const BaselineRow*> chosen;
  for (const std::string& name : names) {
    if (name == "all") continue;
    const BaselineRow& row = find_row("peer", kBaselines, name);
    if (!available(row))
      throw UsageError(
          row.launcher.empty()
              ? fmt::format("--peers {}: {} was not built. espalier doctor lists the packages to install", name,
                            row.program)
              : fmt::format("--peers {}: {} was not built, or {} is not in PATH. espalier doctor lists the packages to "
                            "install",
                            name, row.program, row.launcher));
  }
  for (const BaselineRow& row : kBaselines)
    if (available(row) && (all || std::find(names.begin(), names.end(), row.name) != names.end()))
      chosen.push_back(&row);
  if (chosen.empty())
    throw UsageError("--peers: found no installed library. espalier doctor lists the packages to install");
  return chosen;
}

std::unique_ptr<BenchJob> start_baseline(const BaselineRow& row, int num_ranks, RankListener& listener,
                                         const std::string& folder, Deadline deadline) {
  std::string label = fmt::format("{}/{}", row.library, row.variant);
  launch::LocalOptions options;
  options.output = launch::LocalOptions::Output::stderr_tail;
  std::vector<std::string> worker = {baseline_path(row.program), listener.name(), label};
  if (row.launcher.empty()) {
    std::string store = fmt::format("{}/{}-{}-{}", folder, row.library, row.variant, num_ranks);
    if (::mkdir(store.c_str(), 0700) != 0) throw IoError("cannot create the folder " + store);
    options.num_ranks = num_ranks;
    options.command = joined(joined(worker, {store}), row.arguments);
  } else {
    if (row.irregular) worker.push_back("v");
    options.command = joined(launcher_command(row, num_ranks), worker);
  }
  if (row.keep_memory)
    options.environment["GLIBC_TUNABLES"] =
        "glibc.malloc.mmap_threshold=4294967296:glibc.malloc.trim_threshold=17179869184:glibc.malloc.top_pad=67108864";
  return std::make_unique<BenchJob>(label, num_ranks, std::make_unique<launch::LocalJob>(options), listener, deadline);
}

}  // namespace esp::app
