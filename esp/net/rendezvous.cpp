#include "esp/net/rendezvous.h"

#include <unistd.h>

#include <cmath>
#include <cstring>
#include <map>
#include <optional>
#include <thread>

#include <fmt/format.h>

#include "esp/net/address.h"
#include "esp/net/crypto.h"
#include "esp/net/handshake.h"
#include "esp/net/host.h"
#include "esp/net/hub_failure_detector.h"
#include "esp/net/listener.h"
#include "esp/net/mpi/mpi.h"
#include "esp/net/shm/segment.h"
#include "esp/net/store/file_store.h"
#include "esp/net/store/hub.h"
#include "esp/net/store/hub_store.h"

namespace esp::net {
namespace {

// How long one address is tried before the Hub's address is looked up again. The time grows, so that a distant address
// is reached too.
constexpr Duration kFirstAttempt = std::chrono::milliseconds(300), kLastAttempt = std::chrono::seconds(5);
// how long failures of a published address are tolerated, because a new Hub may replace the address
constexpr Duration kStaleAddress = std::chrono::seconds(3);
constexpr auto kPause = std::chrono::milliseconds(20);  // first pause before the addresses are looked up again
constexpr auto kLongestPause = std::chrono::milliseconds(200);
// Alternative Hub ports besides the endpoint's port, below Linux's ephemeral range. The later half depends on the
// secret, so that another user cannot occupy all of them.
constexpr size_t kNumOtherPorts = 16;
constexpr int kFirstOtherPort = 20000, kEndOfOtherPorts = 32768;
// how long refusals by other programs are tolerated before they become an error
constexpr Duration kOtherPrograms = std::chrono::seconds(10);
constexpr Duration kOtherPause = std::chrono::seconds(1);  // pause before a retry of a port that another program uses
// how long rank 0 waits until an earlier run has released the port
constexpr Duration kEarlierRun = std::chrono::seconds(5);
// a documentation address (TEST-NET-1), used to query the default route
constexpr const char* kDefaultRouteProbe = "192.0.2.1";
constexpr std::string_view kFileScheme = "file://", kMpiScheme = "mpi://";

struct AddressChoice {
  std::string address, why;
};

// The shared directory in which the Hub's owner publishes its address, and the key of the entry.
struct AddressDirectory {
  FileStore store;
  std::string key;
};

std::optional<AddressDirectory> address_directory_of(const RendezvousOptions& options) {
  if (options.endpoint.rfind(kFileScheme, 0) != 0) return {};
  std::string directory = options.endpoint.substr(kFileScheme.size());
  if (directory.empty() || directory.front() != '/')
    throw UsageError(fmt::format("{}: got a relative path; expected file:///directory", options.endpoint));
  return AddressDirectory{FileStore(directory), fmt::format("hub-{}", to_hex(sha256(options.job)).substr(0, 16))};
}

bool one_host(const RendezvousOptions& options) {
  return options.local_size == options.size;
}

std::string wildcard_like(const std::string& address) {
  return address.find(':') == std::string::npos ? "0.0.0.0" : "::";
}
std::string loopback_like(const std::string& address) {
  return address.find(':') == std::string::npos ? "127.0.0.1" : "::1";
}

// The address at which other hosts probably reach this host, if no option sets it.
std::string outward_address(const NetOptions& net) {
  if (!net.interface.empty()) return interface_address(net.interface);
  std::string address = route_source(numeric_address(kDefaultRouteProbe, 9));
  if (!address.empty()) return address;
  for (const Interface& each : interfaces())
    if (!each.loopback) return each.address;
  return "127.0.0.1";
}

// Candidate ports of the Hub, in the order in which rank 0 tries them.
std::vector<int> hub_ports(const RendezvousOptions& options) {
  const int given = parse_endpoint(options.endpoint).port;
  using Port = RendezvousOptions::Port;
  if (options.port == Port::own) return {given};
  std::vector<int> ports;
  if (options.port == Port::shared) ports.push_back(given);
  for (size_t i = 0; i < kNumOtherPorts; ++i) {
    const std::string name = fmt::format("espalier port {} {} {}", i, given, options.job);
    const std::string digest = i < kNumOtherPorts / 2 ? sha256(name) : hkdf_sha256(options.secret.bytes(), "", name);
    uint32_t number;
    std::memcpy(&number, digest.data(), sizeof number);
    ports.push_back(kFirstOtherPort + static_cast<int>(number % (kEndOfOtherPorts - kFirstOtherPort)));
  }
  return ports;
}

std::string server_of(const RendezvousOptions& options) {
  return options.server.empty() ? options.member + " 0" : options.server;
}

// Elapsed seconds rounded to tenths, for messages.
double seconds_since(Clock::time_point begun) {
  return std::round(std::chrono::duration<double>(Clock::now() - begun).count() * 10) / 10;
}

AddressChoice choose_hub_address(const RendezvousOptions& options,
                                 const std::optional<AddressDirectory>& shared_directory, Deadline deadline) {
  const NetOptions& net = options.net;
  std::string host = shared_directory ? "" : parse_endpoint(options.endpoint).host;
  std::vector<SocketAddress> resolved;
  while (!host.empty() && (resolved = resolve(host, 0)).empty() && !one_host(options)) {
    if (deadline.passed())
      throw CommError(CommError::Kind::timeout, -1,
                      fmt::format("{}: the host name does not resolve. Check its spelling and the DNS", host));
    std::this_thread::sleep_for(kPause);
  }
  std::string address = resolved.empty() ? "" : resolved.front().text();
  if (net.bind_any) return {wildcard_like(address), "bind_any is set"};
  if (one_host(options)) return {loopback_like(address), "all ranks are on this host"};
  if (resolved.empty()) return {outward_address(net), "source address of the default route"};
  // Some systems resolve a machine's own name to loopback, which other hosts cannot reach.
  bool own_name = is_loopback(resolved.front()) && options.local_size > 0 && address != host && host != "localhost";
  if (own_name) return {outward_address(net), fmt::format("{} is loopback here, and there are other hosts", host)};
  return {address, "address of the endpoint"};
}

// Whether the port is used by a Hub with the same job name and secret: an earlier start of this job, or another run by
// the same user on the same port.
bool same_job_listens(const HubOptions& at) {
  try {
    std::string fault;
    const HandshakeRequest tool{Role::store, -1, at.job, 0, 0};
    const std::string address = is_wildcard(numeric_address(at.address, 0)) ? loopback_like(at.address) : at.address;
    return static_cast<bool>(try_connect(address, at.port, at.secret, tool, "", Deadline::after(kFirstAttempt), fault));
  } catch (const CommError&) {
    return false;
  }
}

// Starts the Hub on the first port that no other program uses.
std::unique_ptr<Hub> listen(HubOptions options, const std::vector<int>& ports, Deadline deadline) {
  const Deadline earlier_run = deadline.earlier(kEarlierRun);
  for (size_t i = 0;;) {
    options.port = ports[i];
    try {
      auto hub = std::make_unique<Hub>(options);
      if (options.port != ports[0])
        options.log.info("port {} is in use by another program; the ranks use port {}", ports[0], options.port);
      return hub;
    } catch (const CommError& error) {
      if (ports.size() == 1) throw;
      if (same_job_listens(options)) {
        if (earlier_run.passed())
          throw CommError(
              CommError::Kind::refused, -1,
              fmt::format("{} port {}: another run of this user uses the port. Give each run a different MASTER_PORT",
                          options.address, options.port));
        std::this_thread::sleep_for(kPause);
      } else if (++i == ports.size()) {
        throw;
      }
    }
  }
}

std::shared_ptr<Hub> open_hub(const RendezvousOptions& options, std::optional<AddressDirectory>& shared_directory,
                              Deadline deadline) {
  AddressChoice choice = choose_hub_address(options, shared_directory, deadline);
  HubOptions hub_options;
  hub_options.address = choice.address;
  hub_options.size = options.size;
  hub_options.hub_rank = options.rank;
  hub_options.job = options.job;
  hub_options.secret = options.secret;
  hub_options.linger = options.net.timeout;
  hub_options.link_timeout = options.net.link_timeout;
  hub_options.member = options.member;
  hub_options.log = options.log;
  auto hub = listen(hub_options, shared_directory ? std::vector<int>{0} : hub_ports(options), deadline);
  options.log.debug("the rendezvous server listens on {} port {}: {}", hub->address(), hub->port(), choice.why);
  if (!shared_directory) return hub;

  std::string address = is_wildcard(numeric_address(hub->address(), 0)) ? outward_address(options.net) : hub->address();
  std::string line = fmt::format("{} {}", address, hub->port());
  shared_directory->store.set(shared_directory->key, line);
  // Deleter of the Hub: removes the published address, unless a later Hub has published a new one.
  return {hub.release(), [shared_directory = *shared_directory, line](Hub* owned) mutable {
            delete owned;
            try {
              if (shared_directory.store.try_get(shared_directory.key) == line)
                shared_directory.store.erase(shared_directory.key);
            } catch (const IoError&) {
              // The directory was removed, and the published address with it.
            }
          }};
}

// Current candidate addresses of the Hub; empty if not known yet.
std::vector<SocketAddress> hub_addresses(const RendezvousOptions& options,
                                         std::optional<AddressDirectory>& shared_directory, const Hub* own) {
  if (own) {
    bool any = is_wildcard(numeric_address(own->address(), 0));
    return {numeric_address(any ? loopback_like(own->address()) : own->address(), own->port())};
  }
  if (shared_directory) {
    auto line = shared_directory->store.try_get(shared_directory->key);
    auto space = line ? line->find(' ') : std::string::npos;
    if (space == std::string::npos) return {};
    return resolve(line->substr(0, space), std::atoi(line->c_str() + space));
  }
  const std::string host = parse_endpoint(options.endpoint).host;
  std::vector<SocketAddress> found = resolve(host, 0), all;
  if (one_host(options)) found = {numeric_address(loopback_like(found.empty() ? "" : found.front().text()), 0)};
  for (int port : hub_ports(options))
    for (const SocketAddress& at : found) all.push_back(numeric_address(at.text(), port));
  return all;
}

// The source address for a connection to `at`. A configured interface also selects the source of connections to other
// hosts.
std::string source_towards(const RendezvousOptions& options, const SocketAddress& at) {
  return is_loopback(at) || options.host_hub ? "" : options.net.interface;
}

// Connects to the Hub. The address is looked up again between attempts, because names appear late, addresses change,
// and a port may belong to another program.
Socket connect_to_hub(const RendezvousOptions& options, std::optional<AddressDirectory>& shared_directory,
                      const Hub* own, Deadline deadline) {
  const auto begun = Clock::now();
  std::string fault = shared_directory ? fmt::format("{} has not published its address there", server_of(options))
                                       : "the host name does not resolve";
  Duration attempt = kFirstAttempt, pause = kPause;
  const Deadline stale = deadline.earlier(shared_directory                               ? kStaleAddress
                                          : options.port == RendezvousOptions::Port::own ? Duration::zero()
                                                                                         : kOtherPrograms);
  std::map<std::string, Clock::time_point> others;  // ports of other programs, with the time of the next retry
  const HandshakeRequest mine{Role::store, options.rank, options.job, 0, 0};
  while (!deadline.passed()) {
    for (const SocketAddress& at : hub_addresses(options, shared_directory, own)) {
      const std::string place = fmt::format("{} port {}", at.text(), at.port());
      if (auto other = others.find(place); other != others.end() && Clock::now() < other->second) continue;
      const auto called = Clock::now();
      try {
        std::string why;
        Socket socket = try_connect(at.text(), at.port(), options.secret, mine, source_towards(options, at),
                                    deadline.earlier(attempt), why);
        if (socket) return socket;
        fault = fmt::format("{}: {}", place, why);
        if (Clock::now() - called >= attempt) attempt = std::min(2 * attempt, kLastAttempt);
      } catch (const CommError& error) {
        // A published address may belong to a Hub that has ended. Another program may use its port by now.
        if (stale.passed()) throw;
        fault = fmt::format("{}: {}", place, error.what());
        others[place] = Clock::now() + kOtherPause;
      }
    }
    std::this_thread::sleep_for(std::min<Duration>(pause, deadline.left()));
    pause = std::min<Duration>(pause * 3 / 2, kLongestPause);
  }
  throw CommError(CommError::Kind::timeout, -1,
                  fmt::format("no connection to {} at {} within {:g} s ({}): {}", server_of(options), options.endpoint,
                              seconds_since(begun), options.timeout_option, fault));
}

AddressChoice choose_listen_address(const RendezvousOptions& options, const SocketAddress& towards_hub) {
  std::string local = towards_hub.text();
  if (options.net.bind_any) return {wildcard_like(local), "bind_any is set"};
  if (!options.net.interface.empty())
    return {interface_address(options.net.interface), fmt::format("it matches \"{}\"", options.net.interface)};
  if (one_host(options) || is_loopback(towards_hub)) return {loopback_like(local), "all ranks are on this host"};
  return {local, "source address of the route to the rendezvous server"};
}

// The address that a rank publishes if it listens on the wildcard address. The Hub's own host reaches the Hub by
// loopback, and other hosts cannot use a loopback address.
std::string reachable_address(const RendezvousOptions& options, const SocketAddress& towards_hub) {
  bool inward = is_loopback(towards_hub) && options.host_hub && !one_host(options);
  return inward ? outward_address(options.net) : towards_hub.text();
}

uint64_t random_number() {
  uint64_t number;
  std::memcpy(&number, random_bytes(sizeof number).data(), sizeof number);
  return number;
}

void check_options(const RendezvousOptions& options) {
  if (options.size < 1 || options.size > kMaxWorldSize || options.rank < 0 || options.rank >= options.size)
    throw UsageError(fmt::format("{0}: got {1} with {2} {0}s; expected 0 to {3}", options.member, options.rank,
                                 options.size, options.size - 1));
  if (options.secret.bytes().empty())
    throw UsageError(
        "no secret: write 32 random bytes into a file of mode 0600 on every host and pass the file's path in "
        "ESPALIER_SECRET_FILE");
}

// Joins the Hub that answers now: returns its store and fills in the table of peers. Returns null if that Hub closes
// before the table is complete; it then most likely belonged to an earlier job that was ending.
std::shared_ptr<HubStore> join_hub(const RendezvousOptions& options, std::optional<AddressDirectory>& shared_directory,
                                   World& world, std::string& fault, Deadline deadline) {
  std::shared_ptr<HubStore> store;
  const auto begun = Clock::now();
  try {
    // 1. Connect to the store.
    Socket socket = connect_to_hub(options, shared_directory, world.hub.get(), deadline);
    SocketAddress towards_hub = local_address(socket.fd());
    store = std::make_shared<HubStore>(
        std::move(socket), HubStore::Options{options.net.start_timeout, options.net.link_timeout, server_of(options)},
        deadline);
    world.job = store->hub_info().job;

    // 2. Listen for peers.
    AddressChoice choice = choose_listen_address(options, towards_hub);
    world.listener = std::make_shared<Listener>(choice.address, 0, options.secret, world.job, nullptr, options.encrypt);
    world.listener->reject_if([peer_status = world.peer_status](const HandshakeRequest& request) {
      return peer_status->is_lost(request.rank);
    });
    options.log.debug("listening for peers on {} port {}: {}", choice.address, world.listener->port(), choice.why);

    // 3. Exchange peer addresses.
    Peer mine;
    mine.host = host_identity(options.host_name);
    mine.address = options.net.bind_any ? reachable_address(options, towards_hub) : choice.address;
    mine.port = world.listener->port();
    mine.pid = getpid();
    mine.process = random_number();
    world.peers = store->join({options.rank, options.size, mine}, deadline);
    return store;
  } catch (const CommError& error) {
    if (error.kind() == CommError::Kind::timeout && store)
      throw CommError(CommError::Kind::timeout, -1,
                      fmt::format("{}, within {:g} s ({}). Start every {} and give all of them the same endpoint",
                                  error.what(), seconds_since(begun), options.timeout_option, options.member));
    bool went_away = store ? store->broken() : error.kind() == CommError::Kind::lost;
    if (!went_away || world.hub || deadline.passed()) throw;
    fault = error.what();
    options.log.debug("retrying the rendezvous: {}", fault);
    std::this_thread::sleep_for(kPause);
    return nullptr;
  }
}

}  // namespace

std::unique_ptr<World> rendezvous(const RendezvousOptions& asked, Deadline deadline) {
  if (asked.endpoint.starts_with(kMpiScheme)) {
    auto world = mpi_world(asked.endpoint.substr(kMpiScheme.size()), asked.net, asked.log, asked.encrypt);
    // Without its mpirun, or under another version's, MPI starts each process as a job of its own.
    if (world->size != asked.size)
      throw UsageError(
          fmt::format("{}: got a job of {} ranks from MPI; expected {}, as the environment says. Start with the mpirun "
                      "of the MPI that Espalier was built with, or set MASTER_ADDR and MASTER_PORT",
                      asked.endpoint, world->size, asked.size));
    return world;
  }
  check_options(asked);
  RendezvousOptions options = asked;
  // A world of one rank needs no rendezvous: any port will do.
  if (options.size == 1 && options.endpoint.empty()) {
    options.endpoint = "tcp://127.0.0.1:0";
    options.host_hub = true;
  }
  remove_orphaned_segments();
  auto world = std::make_unique<World>();
  world->rank = options.rank;
  world->size = options.size;
  world->secret = options.secret;
  world->options = options.net;
  world->log = options.log;
  world->peer_status = std::make_shared<PeerStatus>();

  auto shared_directory = address_directory_of(options);
  if (options.host_hub) world->hub = open_hub(options, shared_directory, deadline);
  std::shared_ptr<HubStore> store;
  for (std::string fault; !store;) {
    if (deadline.passed())
      throw CommError(CommError::Kind::timeout, -1,
                      fmt::format("timeout: the {}s did not complete the rendezvous before the deadline ({}): {}",
                                  options.member, options.timeout_option, fault));
    store = join_hub(options, shared_directory, *world, fault, deadline);
  }
  world->store = store;
  if (static_cast<int>(world->peers.size()) != options.size)
    throw CommError(CommError::Kind::corrupt, -1,
                    fmt::format("peer table from {}: got {} {}s; expected {}", server_of(options), world->peers.size(),
                                options.member, options.size));
  // The failure detector connects to the Hub that sent the table, even if another Hub has published an address since.
  const SocketAddress hub = remote_address(store->fd());
  Socket socket =
      connect_to(hub.text(), hub.port(), options.secret, {Role::failure_detector, options.rank, options.job, 0, 0},
                 source_towards(options, hub), deadline);
  world->failure_detector = std::make_shared<HubFailureDetector>(std::move(socket), *world, store->hub_info().hub_rank);
  return world;
}

}  // namespace esp::net
