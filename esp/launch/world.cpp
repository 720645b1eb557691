#include "esp/launch/world.h"

#include <charconv>
#include <random>

#include <fmt/format.h>

#include "esp/base/error.h"
#include "esp/launch/secret.h"
#include "esp/net/mpi/mpi.h"
#include "esp/net/secret.h"

namespace esp::launch {
namespace {

std::string value_of(const Environment& environment, const std::string& name) {
  const auto found = environment.find(name);
  return found == environment.end() ? "" : found->second;
}

// True if the launcher says that all ranks are on one host, or if the rendezvous address is a loopback address.
bool on_one_host(const Placement& place) {
  const std::string& at = place.master_address;
  return place.local_size == place.size || at.starts_with("127.") || at == "localhost" || at == "::1";
}

// The secret from the launcher. If there is none and all ranks are on this host: the user's local secret file, which
// other users cannot read.
net::Secret secret_of(const Environment& environment, const Placement& place) {
  net::Secret given = read_secret(environment);
  if (!given.bytes().empty() || place.size == 1) return given;
  if (on_one_host(place)) return net::local_secret(value_of(environment, "XDG_RUNTIME_DIR"));
  throw UsageError(fmt::format(
      "{}: got no shared secret for {} ranks, {} of them on this host; ranks on several hosts need one for "
      "authentication. "
      "Create a file that all hosts can read (head -c 32 /dev/urandom | base64 > secret; chmod 600 secret) and set "
      "ESPALIER_SECRET_FILE to its path",
      place.launcher, place.size, place.local_size));
}

// The name of this job. It keeps out ranks of other jobs of the same user, which may have the same secret.
std::string job_of(const Environment& environment, const Placement& place) {
  if (environment.contains("ESPALIER_JOB")) return environment.at("ESPALIER_JOB");
  std::string job = fmt::format("port-{}", place.master_port);
  if (environment.contains("SLURM_JOB_ID"))
    job = fmt::format("slurm-{}.{}", environment.at("SLURM_JOB_ID"), value_of(environment, "SLURM_STEP_ID"));
  if (const std::string run = value_of(environment, "TORCHELASTIC_RUN_ID"); !run.empty()) job += "/" + run;
  return job;
}

// Whether the rendezvous can use MASTER_PORT. `espalier launch` does not need it: its hub has a separate port.
// torchrun may have taken it for its own store. Under another launcher it may be free or taken.
net::RendezvousOptions::Port port_of(const Environment& environment) {
  using Port = net::RendezvousOptions::Port;
  if (environment.contains("ESPALIER_JOB")) return Port::own;
  const std::string store = value_of(environment, "TORCHELASTIC_USE_AGENT_STORE");
  return store == "True" || store == "1" ? Port::taken : Port::shared;
}

void read_seconds(const Environment& environment, const char* name, Duration& seconds) {
  const std::string text = value_of(environment, name);
  if (text.empty()) return;
  constexpr double kYear = 365.0 * 24 * 3600;
  double value = 0;
  const char* end = text.data() + text.size();
  const auto [stop, error] = std::from_chars(text.data(), end, value);
  if (error != std::errc() || stop != end || !(value > 0 && value <= kYear))
    throw UsageError(fmt::format("{}: got \"{}\"; expected a number of seconds > 0 and <= {:.0f}", name, text, kYear));
  seconds = std::chrono::duration_cast<Duration>(std::chrono::duration<double>(value));
}

// The rendezvous endpoint. `espalier launch` passes it in ESPALIER_STORE and leaves MASTER_PORT to programs that run
// their own store.
std::string hub_endpoint(const Environment& environment, const Placement& place) {
  if (environment.contains("ESPALIER_JOB") && environment.contains("ESPALIER_STORE"))
    return environment.at("ESPALIER_STORE");
  // Here the world has one rank: with more ranks, the launcher sets an address or the rendezvous uses MPI.
  if (place.master_address.empty()) return "tcp://127.0.0.1:0";
  const bool v6 = place.master_address.find(':') != std::string::npos;
  return fmt::format("tcp://{}:{}", v6 ? "[" + place.master_address + "]" : place.master_address, place.master_port);
}

// Name of the MPI library whose mpirun started this process; empty if mpirun did not start it.
std::string mpi_of(const Environment& environment) {
  return std::string(net::mpi_flavour([&](const char* variable) { return environment.contains(variable); }));
}

bool uses_mpi_rendezvous(const Environment& environment, const Placement& place, bool over_mpi) {
  if (place.size == 1) return false;
  if (!over_mpi) return place.master_address.empty() && place.launcher == mpi_of(environment);
  if (!mpi_of(environment).empty()) return true;
  throw UsageError(
      fmt::format("comm.transport = \"mpi\": needs ranks started by mpirun (Open MPI or MPICH); {} started these. "
                  "Start with mpirun -n {} espalier …, or use another transport",
                  environment.contains("ESPALIER_JOB") ? "espalier" : place.launcher, place.size));
}

bool encrypts(const Environment& environment) {
  const std::string word = value_of(environment, "ESPALIER_ENCRYPT");
  if (word.empty() || word == "0") return false;
  if (word == "1") return true;
  throw UsageError(fmt::format("ESPALIER_ENCRYPT: got \"{}\"; expected 1 (encrypt traffic between hosts) or 0", word));
}

}  // namespace

LocalWorld start_local_world(LocalOptions options, const Log& log) {
  std::random_device random;
  std::string name = fmt::format("local-{:08x}{:08x}", random(), random());
  options.secret = net::Secret::random();
  options.environment["ESPALIER_JOB"] = name;
  net::HubOptions hub;
  hub.size = options.num_ranks;
  hub.job = name;
  hub.secret = options.secret;
  hub.log = log;
  LocalWorld world;
  world.hub = std::make_unique<net::Hub>(hub);
  options.master_address = world.hub->address();
  options.master_port = world.hub->port();
  world.job = std::make_unique<LocalJob>(options);
  return world;
}

void read_timeouts(const Environment& environment, net::NetOptions& net) {
  read_seconds(environment, "ESPALIER_START_TIMEOUT_S", net.start_timeout);
  read_seconds(environment, "ESPALIER_LINK_TIMEOUT_S", net.link_timeout);
}

net::RendezvousOptions join_options(const Environment& environment, bool over_mpi) {
  Placement place = read_environment(environment);
  net::RendezvousOptions options;
  options.rank = place.rank;
  options.size = place.size;
  options.local_size = place.local_size;
  if (auto level = environment.find("ESPALIER_LOG"); level != environment.end())
    options.log = Log(parse_log_level(level->second), place.rank);
  options.encrypt = encrypts(environment);
  read_timeouts(environment, options.net);
  if (uses_mpi_rendezvous(environment, place, over_mpi)) {
    options.endpoint = "mpi://" + mpi_of(environment);
    return options;
  }
  bool launched_by_us = environment.contains("ESPALIER_JOB");
  options.job = job_of(environment, place);
  options.port = port_of(environment);
  if (launched_by_us) options.server = "the launcher";
  // Under `espalier launch` the launcher hosts the hub; under any other launcher rank 0 hosts it.
  options.host_hub = !launched_by_us && place.rank == 0;
  options.endpoint = hub_endpoint(environment, place);
  options.secret = secret_of(environment, place);
  return options;
}

}  // namespace esp::launch
