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

// What rank 0 tells everyone, as bytes of a fixed size. An empty endpoint: it could not, and `job` says why.
struct Invitation {
  std::array<char, 128> endpoint{};
  std::array<char, 512> job{};
  std::array<char, 32> secret{};
};

std::string hub_address(const NetOptions& options, bool one_host) {
  if (options.bind_any) return "0.0.0.0";
  if (!options.interface.empty()) return interface_address(options.interface);
  if (one_host) return "127.0.0.1";
  std::string outward = route_source(numeric_address("192.0.2.1", 9));  // an address that exists nowhere
  for (const Interface& each : interfaces())
    if (outward.empty() && !each.loopback) outward = each.address;
  if (outward.empty()) throw UsageError("this host has no address other hosts could reach; name an interface");
  return outward;
}

template <size_t kBytes>
void copy_text(std::array<char, kBytes>& to, const std::string& from) {
  std::strncpy(to.data(), from.c_str(), kBytes - 1);
}

// Others reach a Hub that listens everywhere by the address that leads outward.
std::string endpoint_of(const Hub& hub, const NetOptions& options, bool one_host) {
  NetOptions bound = options;
  bound.bind_any = false;
  std::string address = options.bind_any ? hub_address(bound, one_host) : hub.address();
  bool v6 = address.find(':') != std::string::npos;
  return fmt::format("tcp://{}{}{}:{}", v6 ? "[" : "", address, v6 ? "]" : "", hub.port());
}

std::shared_ptr<Hub> invite(Invitation& invitation, int size, const NetOptions& options, bool one_host,
                            const Log& log) {
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
  copy_text(invitation.endpoint, endpoint_of(*hub, options, one_host));
  copy_text(invitation.job, hub_options.job);
  std::memcpy(invitation.secret.data(), hub_options.secret.bytes().data(), invitation.secret.size());
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
  RendezvousOptions meeting;
  meeting.rank = mpi.rank();
  meeting.size = mpi.size();
  meeting.local_size = mpi.local_size();
  meeting.net = options;
  meeting.encrypt = encrypt;
  meeting.log = log.with_rank(meeting.rank);

  // A rank 0 that fails says so to the others, who would wait in the broadcast otherwise.
  Invitation invitation;
  std::shared_ptr<Hub> hub;
  std::exception_ptr failed;
  if (meeting.rank == 0) {
    try {
      hub = invite(invitation, meeting.size, options, meeting.local_size == meeting.size, meeting.log);
    } catch (const Error& error) {
      failed = std::current_exception();
      copy_text(invitation.job, error.what());
    }
  }
  library->check(mpi.broadcast(&invitation, sizeof invitation, 0), "MPI_Bcast", 0);
  if (failed) std::rethrow_exception(failed);
  if (invitation.endpoint[0] == '\0')
    throw CommError(CommError::Kind::refused, 0,
                    fmt::format("rank 0 could not start the job: {}", invitation.job.data()));

  meeting.endpoint = invitation.endpoint.data();
  meeting.job = invitation.job.data();
  meeting.secret = Secret(std::string(invitation.secret.data(), invitation.secret.size()));
  explicit_bzero(invitation.secret.data(), invitation.secret.size());
  auto world = rendezvous(meeting, Deadline::after(options.start_timeout));
  world->hub = hub;
  world->mpi = library;
  library->heed(world->fate);
  return world;
}

}  // namespace esp::net
