#include <string.h>

#include <array>
#include <cstring>

#include <fmt/format.h>

#include "esp/base/error.h"
#include "esp/net/address.h"
#include "esp/net/crypto.h"
#include "esp/net/mpi/library.h"
#include "esp/net/mpi/mpi.h"
#include "esp/net/rendezvous.h"
#include "esp/net/store/hub.h"

namespace esp::net {
namespace {

// The data that rank 0 broadcasts to all ranks, in fields of fixed size. An empty endpoint means that rank 0 failed;
// `job` then holds the reason.
struct JobInfo {
  std::array<char, 128> endpoint{};
  std::array<char, 512> job{};
  std::array<char, 32> secret{};
};

std::string hub_address(const NetOptions& options, bool one_host) {
  if (options.bind_any) return "0.0.0.0";
  if (!options.interface.empty()) return interface_address(options.interface);
  if (one_host) return "127.0.0.1";
  // 192.0.2.1 is a documentation address (TEST-NET-1); it selects the default route
  std::string outward = route_source(numeric_address("192.0.2.1", 9));
  for (const Interface& each : interfaces())
    if (outward.empty() && !each.loopback) outward = each.address;
  if (outward.empty()) throw UsageError("this host has no address that other hosts can reach. Set an interface");
  return outward;
}

template <size_t kBytes>
void copy_text(std::array<char, kBytes>& to, const std::string& from) {
  std::strncpy(to.data(), from.c_str(), kBytes - 1);
}

// The endpoint that other ranks connect to. If the Hub listens on the wildcard address, this is the host's address on
// the default route.
std::string endpoint_of(const Hub& hub, const NetOptions& options, bool one_host) {
  NetOptions bound = options;
  bound.bind_any = false;
  std::string address = options.bind_any ? hub_address(bound, one_host) : hub.address();
  bool v6 = address.find(':') != std::string::npos;
  return fmt::format("tcp://{}{}{}:{}", v6 ? "[" : "", address, v6 ? "]" : "", hub.port());
}

std::shared_ptr<Hub> start_hub(JobInfo& job_info, int size, const NetOptions& options, bool one_host, const Log& log) {
  HubOptions hub_options;
  hub_options.address = hub_address(options, one_host);
  hub_options.size = size;
  hub_options.hub_rank = 0;
  hub_options.job = to_hex(random_bytes(16));
  hub_options.secret = Secret::random();
  hub_options.linger = options.timeout;
  hub_options.link_timeout = options.link_timeout;
  hub_options.log = log;
  auto hub = std::make_shared<Hub>(hub_options);
  copy_text(job_info.endpoint, endpoint_of(*hub, options, one_host));
  copy_text(job_info.job, hub_options.job);
  std::memcpy(job_info.secret.data(), hub_options.secret.bytes().data(), job_info.secret.size());
  return hub;
}

}  // namespace

std::string_view mpi_flavour(const std::function<bool(const char* variable)>& is_set) {
  if (is_set("OMPI_COMM_WORLD_RANK")) return "openmpi";
  if (is_set("PMI_RANK")) return "mpich";
  return {};
}

std::unique_ptr<World> mpi_world(std::string_view flavour, const NetOptions& options, const Log& log, bool encrypt) {
  auto library = std::make_shared<MpiLibrary>(flavour, log);
  const EspMpiTable& mpi = library->table();
  RendezvousOptions rendezvous_options;
  rendezvous_options.rank = mpi.rank();
  rendezvous_options.size = mpi.size();
  rendezvous_options.local_size = mpi.local_size();
  rendezvous_options.net = options;
  rendezvous_options.encrypt = encrypt;
  rendezvous_options.log = log.with_rank(rendezvous_options.rank);

  // If rank 0 fails, it broadcasts the failure; otherwise the other ranks would wait forever.
  JobInfo job_info;
  std::shared_ptr<Hub> hub;
  std::exception_ptr failed;
  if (rendezvous_options.rank == 0) {
    try {
      hub = start_hub(job_info, rendezvous_options.size, options,
                      rendezvous_options.local_size == rendezvous_options.size, rendezvous_options.log);
    } catch (const Error& error) {
      failed = std::current_exception();
      copy_text(job_info.job, error.what());
    }
  }
  library->check(mpi.broadcast(&job_info, sizeof job_info, 0), "MPI_Bcast", 0);
  if (failed) std::rethrow_exception(failed);
  if (job_info.endpoint[0] == '\0')
    throw CommError(CommError::Kind::refused, 0,
                    fmt::format("rank 0 could not start the job: {}", job_info.job.data()));

  rendezvous_options.endpoint = job_info.endpoint.data();
  rendezvous_options.job = job_info.job.data();
  rendezvous_options.secret = Secret(std::string(job_info.secret.data(), job_info.secret.size()));
  explicit_bzero(job_info.secret.data(), job_info.secret.size());
  auto world = rendezvous(rendezvous_options, Deadline::after(options.start_timeout));
  world->hub = hub;
  world->mpi = library;
  library->set_peer_status(world->peer_status);
  return world;
}

}  // namespace esp::net
