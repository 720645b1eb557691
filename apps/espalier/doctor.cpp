// espalier doctor: checks this machine and prints one line per check, with advice.
#include <fcntl.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <sys/statvfs.h>
#include <unistd.h>

#include <cstdlib>
#include <string>
#include <vector>

#include <fmt/format.h>
#include <fmt/ranges.h>
#include <nlohmann/json.hpp>

#include "apps/espalier/baselines.h"
#include "apps/espalier/command.h"
#include "apps/espalier/core_state.h"
#include "apps/espalier/machine.h"
#include "apps/espalier/peak_cache.h"
#include "apps/espalier/terminal.h"
#include "apps/espalier/version.h"
#include "esp/base/error.h"
#include "esp/base/json.h"
#include "esp/device/cpu/topology.h"
#include "esp/device/gpu.h"
#include "esp/net/socket.h"
#include "esp/net/transport.h"

namespace esp::app {
namespace {

// good: works. absent: optional and not installed. care: works, but could be better. broken: required, but does not
// work.
enum class State { good, absent, care, broken };
constexpr std::string_view kStateNames[] = {"good", "absent", "care", "broken"};

struct CheckResult {
  State state;
  std::string name, text, advice;
};

CheckResult check_cores(const device::CpuTopology& topology) {
  std::string text =
      fmt::format("{}{}{} cores allowed", topology.model, topology.model.empty() ? "" : ", ", topology.cores.size());
  if (topology.quota_cores > 0) text += fmt::format(", control group limits them to {:.1f}", topology.quota_cores);
  if (topology.quota_cores > 0 && topology.quota_cores < static_cast<double>(topology.cores.size()))
    return {State::care, "cores", text,
            "ranks beyond the quota are throttled: use at most that many, or raise cpu.max"};
  return {State::good, "cores", text, ""};
}

CheckResult check_features() {
  std::vector<std::string> features = cpu_features();
  bool avx2 = std::find(features.begin(), features.end(), "avx2") != features.end();
  return {avx2 ? State::good : State::care, "instructions", fmt::format("{}", fmt::join(features, " ")),
          avx2 ? "" : "reductions run without AVX2, several times slower"};
}

// Measures the rate even if one is cached: the MFU of a run uses the larger of the two.
CheckResult check_arithmetic(const device::CpuTopology& topology) {
  train::MachinePeak machine = machine_peak();
  const double rate = machine.refresh(DType::f32, topology.usable_cores);
  const std::string file = machine.path(DType::f32, topology.usable_cores);
  const bool cached = !file.empty() && ::access(file.c_str(), R_OK) == 0;
  return {cached ? State::good : State::care, "arithmetic",
          fmt::format("{:.0f} GFLOP/s in fp32 on {} threads{}", rate * 1e-9, topology.usable_cores,
                      cached ? ", cached in " + cache_folder() : ""),
          cached ? "" : "not cached, every run measures it again: set HOME or XDG_CACHE_HOME to a writable folder"};
}

CheckResult check_caches(const device::CpuTopology& topology) {
  if (topology.l1d_bytes == 0)
    return {State::absent, "caches", "not reported by Linux", "a last-level cache of 16 MiB is assumed"};
  return {State::good, "caches",
          fmt::format("L1 {}, L2 {}, L3 {}", human_bytes(topology.l1d_bytes), human_bytes(topology.l2_bytes),
                      human_bytes(topology.l3_bytes)),
          ""};
}

CheckResult check_core_latency(const device::CpuTopology& topology) {
  if (topology.cores.size() < 2) return {State::absent, "core-to-core latency", "only one core", "needs two cores"};
  CoreState state = probe_cores();
  if (!state.known)
    return {State::care, "core-to-core latency", "not measured: the cores are busy",
            "other programs use them: try again later"};
  return {state.near ? State::good : State::care, "core-to-core latency",
          fmt::format("{:.0f} ns, {}", state.ns, state.name()),
          state.near ? "" : "the cores are far apart (another socket or a shared host): small messages are slower"};
}

CheckResult check_memory(const device::CpuTopology& topology) {
  uint64_t available = available_memory();
  std::string text = fmt::format("{} of {} available", human_bytes(available), human_bytes(topology.memory_bytes));
  if (topology.memory_limit_bytes) text += ", control group limits it to " + human_bytes(topology.memory_limit_bytes);
  bool little = available < (uint64_t{1} << 30);
  return {little ? State::care : State::good, "memory", text,
          little ? "less than 1 GiB is free: the OOM killer of Linux may end ranks" : ""};
}

std::vector<CheckResult> check_gpus() {
  const device::GpuSurvey survey = device::survey_gpus();
  if (survey.gpus.empty()) return {{State::absent, "cuda", survey.problem, "only needed for run.device = \"cuda\""}};
  std::vector<CheckResult> all;
  for (const device::GpuInfo& gpu : survey.gpus)
    all.push_back(
        {gpu.major == 9 ? State::good : State::care, fmt::format("cuda:{}", gpu.index),
         fmt::format("{}, {}, compute capability {}.{}, driver for CUDA {}.{}", gpu.name, human_bytes(gpu.memory_bytes),
                     gpu.major, gpu.minor, survey.driver / 1000, survey.driver % 1000 / 10),
         gpu.major == 9 ? "" : "this build requires compute capability 9.0"});
  return all;
}

CheckResult check_shared_memory() {
  struct statvfs status {};
  if (::statvfs("/dev/shm", &status) != 0)
    return {State::broken, "shared memory", "/dev/shm: " + errno_text(errno), "mount a tmpfs on /dev/shm"};
  uint64_t size = status.f_blocks * status.f_frsize, free = status.f_bavail * status.f_frsize;
  std::string text = fmt::format("/dev/shm {} of {} free", human_bytes(free), human_bytes(size));
  std::string name = "/dev/shm/espalier-doctor-XXXXXX";
  net::Socket file(::mkostemp(name.data(), O_CLOEXEC));
  if (!file)
    return {State::broken, "shared memory", text + ", not writable: " + errno_text(errno), "chmod 1777 /dev/shm"};
  ::unlink(name.c_str());
  if (free < (uint64_t{256} << 20))
    return {State::care, "shared memory", text,
            "at least 256 MiB is recommended: docker run --shm-size=2g, or remount it larger"};
  return {State::good, "shared memory", text, ""};
}

// Opens a real connection, so that it detects firewalls and network namespaces without loopback.
CheckResult check_loopback() {
  net::Socket listener(::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0)),
      caller(::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0));
  sockaddr_in address{};
  address.sin_family = AF_INET;
  address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  socklen_t length = sizeof address;
  bool up = listener && caller && ::bind(listener.fd(), reinterpret_cast<sockaddr*>(&address), length) == 0 &&
            ::listen(listener.fd(), 1) == 0 &&
            ::getsockname(listener.fd(), reinterpret_cast<sockaddr*>(&address), &length) == 0 &&
            ::connect(caller.fd(), reinterpret_cast<sockaddr*>(&address), length) == 0;
  if (!up) return {State::broken, "loopback", errno_text(errno), "bring it up: ip link set lo up"};
  return {State::good, "loopback", "TCP to 127.0.0.1 works", ""};
}

CheckResult check_congestion() {
  std::string now = first_line("/proc/sys/net/ipv4/tcp_congestion_control");
  if (now.empty())
    return {State::absent, "congestion control", "not reported by Linux", "sockets keep the default of the system"};
  if (now != "bbr") return {State::good, "congestion control", now, ""};
  net::Socket probe(::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0));
  bool settable = ::setsockopt(probe.fd(), IPPROTO_TCP, TCP_CONGESTION, "reno", 4) == 0;
  return {State::care, "congestion control", now + (settable ? ", reno can be set per socket" : ""),
          settable ? "bbr slows down fast links; espalier sets reno on its sockets"
                   : "bbr slows down fast links: sysctl net.ipv4.tcp_allowed_congestion_control=\"bbr reno cubic\""};
}

CheckResult check_limits() {
  rlimit files{}, processes{}, locked{};
  ::getrlimit(RLIMIT_NOFILE, &files);
  ::getrlimit(RLIMIT_NPROC, &processes);
  ::getrlimit(RLIMIT_MEMLOCK, &locked);
  auto show = [](rlim_t value) { return value == RLIM_INFINITY ? std::string("unlimited") : std::to_string(value); };
  std::string text =
      fmt::format("files {}, processes {}, locked memory {}", show(files.rlim_cur), show(processes.rlim_cur),
                  locked.rlim_cur == RLIM_INFINITY ? "unlimited" : human_bytes(locked.rlim_cur));
  if (files.rlim_cur < 1024) return {State::care, "limits", text, "a rank opens a few files per peer: ulimit -n 4096"};
  return {State::good, "limits", text, ""};
}

CheckResult check_copying() {
  std::string scope = first_line("/proc/sys/kernel/yama/ptrace_scope");
  if (scope.empty() || scope == "0") return {State::good, "cross-process copies", "allowed", ""};
  return {State::care, "cross-process copies", "restricted (ptrace_scope " + scope + ")",
          "transfers with a single copy need them: sysctl kernel.yama.ptrace_scope=0, or use registered buffers"};
}

CheckResult check_library(const std::string& name, const std::optional<DetectedLibrary>& detected,
                          const std::string& advice) {
  if (!detected) return {State::absent, name, "not found", advice};
  return {State::good, name, detected->version, ""};
}

// Searches for plugins where net/mpi searches first: beside the binary, or in the library folder next to it.
CheckResult check_plugins() {
  std::string own = executable_path();
  std::string folder = own.substr(0, own.rfind('/'));
  std::vector<std::string> found;
  for (const char* flavour : {"openmpi", "mpich"})
    for (const char* step : {"", "/../lib", "/../lib/x86_64-linux-gnu"})
      if (::access(fmt::format("{}{}/libespalier_mpi_{}.so", folder, step, flavour).c_str(), R_OK) == 0) {
        found.emplace_back(flavour);
        break;
      }
  if (!found.empty()) return {State::good, "MPI plug-ins", fmt::format("{}", fmt::join(found, " ")), ""};
  return {State::absent, "MPI plug-ins", "none built",
          "apt-get install libopenmpi-dev or libmpich-dev, then build again, to use MPI as transport"};
}

void check_accelerators(std::vector<CheckResult>& findings) {
  std::optional<CudaDriver> cuda = detect_cuda();
  if (!cuda) {
    findings.push_back(
        {State::absent, "GPU driver", "no driver found", "CPU only; install NVIDIA's driver to use a GPU"});
  } else if (cuda->gpus.empty()) {
    findings.push_back({State::care, "GPU driver", "driver " + cuda->driver + ", no GPU found",
                        "check nvidia-smi and CUDA_VISIBLE_DEVICES"});
  } else {
    findings.push_back(
        {State::good, "GPU driver", fmt::format("driver {}, {}", cuda->driver, fmt::join(cuda->gpus, ", ")), ""});
  }
  findings.push_back(check_library("NCCL", detect_nccl(), "only needed for GPUs"));
}

std::vector<CheckResult> run_checks() {
  device::CpuTopology topology = device::read_topology();
  std::vector<CheckResult> findings = {check_cores(topology),
                                       check_features(),
                                       check_arithmetic(topology),
                                       check_caches(topology),
                                       check_core_latency(topology),
                                       check_memory(topology),
                                       check_shared_memory(),
                                       check_loopback(),
                                       check_congestion(),
                                       check_limits(),
                                       check_copying()};
  std::vector<std::string_view> names;
  for (const net::TransportRow& row : net::transports()) names.push_back(row.name);
  findings.push_back(
      {names.empty() ? State::broken : State::good, "transports", fmt::format("{}", fmt::join(names, " ")), ""});
  findings.push_back(check_plugins());
  findings.push_back(check_library("Open MPI", detect_open_mpi(),
                                   "apt-get install openmpi-bin to use it as transport or to compare with it"));
  findings.push_back(
      check_library("MPICH", detect_mpich(), "apt-get install mpich to use it as transport or to compare with it"));
  std::vector<std::string> baselines = built_baselines();
  findings.push_back(
      {baselines.empty() ? State::absent : State::good, "bench peers",
       baselines.empty() ? "none built" : fmt::format("{}", fmt::join(baselines, " ")),
       baselines.empty() ? "apt-get install libopenmpi-dev libmpich-dev libgloo-dev, then build again" : ""});
  check_accelerators(findings);
  for (CheckResult& finding : check_gpus()) findings.push_back(std::move(finding));
  return findings;
}

struct DoctorOptions {
  bool json = false;
};

int run_doctor(const DoctorOptions& options) {
  std::vector<CheckResult> findings = run_checks();
  bool broken = false;
  for (const CheckResult& finding : findings) broken |= finding.state == State::broken;
  if (options.json) {
    Json out = {{"version", version_number()}, {"healthy", !broken}, {"findings", Json::array()}};
    for (const CheckResult& f : findings)
      out["findings"].push_back({{"name", f.name},
                                 {"state", kStateNames[static_cast<int>(f.state)]},
                                 {"text", f.text},
                                 {"advice", f.advice}});
    fmt::print("{}\n", out.dump(2));
  } else {
    Style style(stdout);
    for (const CheckResult& f : findings) {
      std::string mark = f.state == State::good     ? style.green("✓")
                         : f.state == State::care   ? style.yellow("!")
                         : f.state == State::absent ? style.dim("✗")
                                                    : style.red("✗");
      fmt::print("{} {:<21}{}\n", mark, f.name, f.text);
      if (!f.advice.empty())
        fmt::print("  {:<21}{}\n", "", style.dim((f.state == State::broken ? "required: " : "") + f.advice));
    }
    if (broken) fmt::print("{}\n", style.red("A required check failed."));
  }
  return static_cast<int>(broken ? ExitCode::usage : ExitCode::done);
}

}  // namespace

void define_doctor(const Arguments& app, SelectedCommand& chosen) {
  auto options = bind_options<DoctorOptions>(app, chosen, run_doctor);
  app.add_flag("--json", options->json, "print JSON");
  app.footer("✓ works   ! works, could be better   ✗ missing. Exit code 2 if a required check failed.");
}

}  // namespace esp::app
