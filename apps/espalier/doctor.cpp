// espalier doctor: what this machine has and what is wrong with it, one line each with what to do about it.
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

// good: there and well. absent: optional and not there. care: works, could be better. broken: needed and not working.
enum class State { good, absent, care, broken };
constexpr std::string_view kStateNames[] = {"good", "absent", "care", "broken"};

struct Finding {
  State state;
  std::string name, text, advice;
};

Finding check_cores(const device::CpuTopology& topology) {
  std::string text =
      fmt::format("{}{}{} allowed", topology.model, topology.model.empty() ? "" : ", ", topology.cores.size());
  if (topology.quota_cores > 0) text += fmt::format(", control group gives {:.1f}", topology.quota_cores);
  if (topology.quota_cores > 0 && topology.quota_cores < static_cast<double>(topology.cores.size()))
    return {State::care, "cores", text,
            "ranks beyond the quota are throttled: use at most that many, or raise cpu.max"};
  return {State::good, "cores", text, ""};
}

Finding check_features() {
  std::vector<std::string> features = cpu_features();
  bool avx2 = std::find(features.begin(), features.end(), "avx2") != features.end();
  return {avx2 ? State::good : State::care, "instructions", fmt::format("{}", fmt::join(features, " ")),
          avx2 ? "" : "reductions run without AVX2, several times slower"};
}

// Measured again at every call: a run's mfu is held against the larger of this and what was measured before.
Finding check_arithmetic(const device::CpuTopology& topology) {
  train::MachinePeak machine = machine_peak();
  const double rate = machine.refresh(DType::f32, topology.usable_cores);
  const std::string file = machine.path(DType::f32, topology.usable_cores);
  const bool kept = !file.empty() && ::access(file.c_str(), R_OK) == 0;
  return {kept ? State::good : State::care, "arithmetic",
          fmt::format("{:.0f} GFLOP/s in fp32 on {} threads{}", rate * 1e-9, topology.usable_cores,
                      kept ? ", kept in " + cache_folder() : ""),
          kept ? "" : "every run measures it for itself: set HOME or XDG_CACHE_HOME to a folder that can be written"};
}

Finding check_caches(const device::CpuTopology& topology) {
  if (topology.l1d_bytes == 0)
    return {State::absent, "caches", "the kernel does not say", "a last cache of 16 MiB is assumed"};
  return {State::good, "caches",
          fmt::format("L1 {}, L2 {}, L3 {}", human_bytes(topology.l1d_bytes), human_bytes(topology.l2_bytes),
                      human_bytes(topology.l3_bytes)),
          ""};
}

Finding check_handover(const device::CpuTopology& topology) {
  if (topology.cores.size() < 2)
    return {State::absent, "core hand-over", "there is one core", "only of interest with two and more"};
  CoreState state = probe_cores();
  if (!state.known)
    return {State::care, "core hand-over", "the cores had no time for it", "other programs fill them: try again later"};
  return {state.near ? State::good : State::care, "core hand-over",
          fmt::format("{:.0f} ns, {}", state.ns, state.name()),
          state.near ? "" : "cores are far apart now (another socket or a shared host): small exchanges are slower"};
}

Finding check_memory(const device::CpuTopology& topology) {
  uint64_t available = available_memory();
  std::string text = fmt::format("{} of {} available", human_bytes(available), human_bytes(topology.memory_bytes));
  if (topology.memory_limit_bytes) text += ", control group allows " + human_bytes(topology.memory_limit_bytes);
  bool little = available < (uint64_t{1} << 30);
  return {little ? State::care : State::good, "memory", text,
          little ? "less than 1 GiB is free: expect the kernel to kill" : ""};
}

std::vector<Finding> check_gpus() {
  const device::GpuSurvey survey = device::survey_gpus();
  if (survey.gpus.empty()) return {{State::absent, "cuda", survey.problem, "only needed for run.device = \"cuda\""}};
  std::vector<Finding> all;
  for (const device::GpuInfo& gpu : survey.gpus)
    all.push_back(
        {gpu.major == 9 ? State::good : State::care, fmt::format("cuda:{}", gpu.index),
         fmt::format("{}, {}, compute capability {}.{}, driver for CUDA {}.{}", gpu.name, human_bytes(gpu.memory_bytes),
                     gpu.major, gpu.minor, survey.driver / 1000, survey.driver % 1000 / 10),
         gpu.major == 9 ? "" : "this build has code for compute capability 9.0"});
  return all;
}

Finding check_shared_memory() {
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
            "below 256 MiB ranks run out: docker run --shm-size=2g, or remount it larger"};
  return {State::good, "shared memory", text, ""};
}

// Really opens a connection: firewalls and namespaces without a loopback are found here, not at hour nine.
Finding check_loopback() {
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

Finding check_congestion() {
  std::string now = first_line("/proc/sys/net/ipv4/tcp_congestion_control");
  if (now.empty())
    return {State::absent, "congestion control", "the kernel does not say", "sockets keep what it chose"};
  if (now != "bbr") return {State::good, "congestion control", now, ""};
  net::Socket probe(::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0));
  bool settable = ::setsockopt(probe.fd(), IPPROTO_TCP, TCP_CONGESTION, "reno", 4) == 0;
  return {State::care, "congestion control", now + (settable ? ", reno can be set per socket" : ""),
          settable ? "bbr paces fast links; espalier asks for reno on its own sockets"
                   : "bbr paces fast links: sysctl net.ipv4.tcp_allowed_congestion_control=\"bbr reno cubic\""};
}

Finding check_limits() {
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

Finding check_copying() {
  std::string scope = first_line("/proc/sys/kernel/yama/ptrace_scope");
  if (scope.empty() || scope == "0") return {State::good, "cross-process copies", "allowed", ""};
  return {State::care, "cross-process copies", "restricted (ptrace_scope " + scope + ")",
          "one copy per hop needs them between ranks: sysctl kernel.yama.ptrace_scope=0, or use registered buffers"};
}

Finding library(const std::string& name, const std::optional<SeenLibrary>& seen, const std::string& advice) {
  if (!seen) return {State::absent, name, "not found", advice};
  return {State::good, name, seen->version, ""};
}

// Where net/mpi looks for them first: beside the binary, or in the library folder next to it.
Finding check_plugins() {
  std::string own = own_path();
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
          "apt-get install libopenmpi-dev or libmpich-dev, then build again, to let an MPI carry the traffic"};
}

void check_accelerators(std::vector<Finding>& findings) {
  std::optional<Cuda> cuda = see_cuda();
  if (!cuda) {
    findings.push_back(
        {State::absent, "GPU driver", "no driver found", "CPU only; install NVIDIA's driver to use a GPU"});
  } else if (cuda->gpus.empty()) {
    findings.push_back({State::care, "GPU driver", "driver " + cuda->driver + ", no GPU answers",
                        "check nvidia-smi and CUDA_VISIBLE_DEVICES"});
  } else {
    findings.push_back(
        {State::good, "GPU driver", fmt::format("driver {}, {}", cuda->driver, fmt::join(cuda->gpus, ", ")), ""});
  }
  findings.push_back(library("NCCL", see_nccl(), "only needed for GPUs"));
}

std::vector<Finding> examine() {
  device::CpuTopology topology = device::read_topology();
  std::vector<Finding> findings = {check_cores(topology),  check_features(),         check_arithmetic(topology),
                                   check_caches(topology), check_handover(topology), check_memory(topology),
                                   check_shared_memory(),  check_loopback(),         check_congestion(),
                                   check_limits(),         check_copying()};
  std::vector<std::string_view> names;
  for (const net::TransportRow& row : net::transports()) names.push_back(row.name);
  findings.push_back(
      {names.empty() ? State::broken : State::good, "transports", fmt::format("{}", fmt::join(names, " ")), ""});
  findings.push_back(check_plugins());
  findings.push_back(
      library("Open MPI", see_open_mpi(), "apt-get install openmpi-bin to carry traffic over it or compare with it"));
  findings.push_back(
      library("MPICH", see_mpich(), "apt-get install mpich to carry traffic over it or compare with it"));
  std::vector<std::string> baselines = built_baselines();
  findings.push_back(
      {baselines.empty() ? State::absent : State::good, "bench peers",
       baselines.empty() ? "none built" : fmt::format("{}", fmt::join(baselines, " ")),
       baselines.empty() ? "apt-get install libopenmpi-dev libmpich-dev libgloo-dev, then build again" : ""});
  check_accelerators(findings);
  for (Finding& finding : check_gpus()) findings.push_back(std::move(finding));
  return findings;
}

struct DoctorOptions {
  bool json = false;
};

int run_doctor(const DoctorOptions& options) {
  std::vector<Finding> findings = examine();
  bool broken = false;
  for (const Finding& finding : findings) broken |= finding.state == State::broken;
  if (options.json) {
    Json out = {{"version", version_number()}, {"healthy", !broken}, {"findings", Json::array()}};
    for (const Finding& f : findings)
      out["findings"].push_back({{"name", f.name},
                                 {"state", kStateNames[static_cast<int>(f.state)]},
                                 {"text", f.text},
                                 {"advice", f.advice}});
    fmt::print("{}\n", out.dump(2));
  } else {
    Style style(stdout);
    for (const Finding& f : findings) {
      std::string mark = f.state == State::good     ? style.green("✓")
                         : f.state == State::care   ? style.yellow("!")
                         : f.state == State::absent ? style.dim("✗")
                                                    : style.red("✗");
      fmt::print("{} {:<21}{}\n", mark, f.name, f.text);
      if (!f.advice.empty())
        fmt::print("  {:<21}{}\n", "", style.dim((f.state == State::broken ? "needed: " : "") + f.advice));
    }
    if (broken) fmt::print("{}\n", style.red("Something needed is broken."));
  }
  return static_cast<int>(broken ? ExitCode::usage : ExitCode::done);
}

}  // namespace

void define_doctor(const Arguments& app, Chosen& chosen) {
  auto options = keep<DoctorOptions>(app, chosen, run_doctor);
  app.add_flag("--json", options->json, "print one JSON object instead");
  app.footer("✓ fine   ! works, could be better   ✗ not there. Exit code 2 when something needed is broken.");
}

}  // namespace esp::app
