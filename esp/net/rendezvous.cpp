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
#include "esp/net/hub_watch.h"
#include "esp/net/listener.h"
#include "esp/net/mpi/mpi.h"
#include "esp/net/shm/segment.h"
#include "esp/net/store/file_store.h"
#include "esp/net/store/hub.h"
#include "esp/net/store/hub_store.h"

namespace esp::net {
namespace {

// With one address before we look again where the hub is; growing, so that a far one is reached too.
constexpr Duration kFirstAttempt = std::chrono::milliseconds(300), kLastAttempt = std::chrono::seconds(5);
constexpr Duration kStaleAddress = std::chrono::seconds(3);  // until the hub has left its present one
constexpr auto kPause = std::chrono::milliseconds(20);       // before a name that does not resolve is tried again
constexpr auto kLongestPause = std::chrono::milliseconds(200);
// Ports besides the endpoint's that a Hub may have: below those Linux hands out by itself. The later half depends on
// the secret, so that no other user can occupy all of them.
constexpr size_t kNumOtherPorts = 16;
constexpr int kFirstOtherPort = 20000, kEndOfOtherPorts = 32768;
constexpr Duration kOtherPrograms = std::chrono::seconds(10);  // that refuse us, until ours must have been found
constexpr Duration kOtherPause = std::chrono::seconds(1);      // before a port of another program is tried again
constexpr Duration kEarlierRun = std::chrono::seconds(5);      // until it has left the port
constexpr const char* kNowhere = "192.0.2.1";  // an address that exists nowhere, to ask for the default route
constexpr std::string_view kFileScheme = "file://", kMpiScheme = "mpi://";

struct Choice {
  std::string address, why;
};

// The directory in which the Hub's owner leaves its address, and under which key.
struct Board {
  FileStore store;
  std::string key;
};

std::optional<Board> board_of(const RendezvousOptions& options) {
  if (options.endpoint.rfind(kFileScheme, 0) != 0) return {};
  std::string directory = options.endpoint.substr(kFileScheme.size());
  if (directory.empty() || directory.front() != '/')
    throw UsageError(fmt::format("{}: got a relative path; expected file:///directory", options.endpoint));
  return Board{FileStore(directory), fmt::format("hub-{}", to_hex(sha256(options.job)).substr(0, 16))};
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

// Where other hosts are likely to reach us when nothing says more.
std::string outward_address(const NetOptions& net) {
  if (!net.interface.empty()) return interface_address(net.interface);
  std::string address = route_source(numeric_address(kNowhere, 9));
  if (!address.empty()) return address;
  for (const Interface& each : interfaces())
    if (!each.loopback) return each.address;
  return "127.0.0.1";
}

// Where the Hub may listen, in the order in which rank 0 tries.
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

// For messages: in tenths.
double seconds_since(Clock::time_point begun) {
  return std::round(std::chrono::duration<double>(Clock::now() - begun).count() * 10) / 10;
}

Choice choose_hub_address(const RendezvousOptions& options, const std::optional<Board>& board, Deadline deadline) {
  const NetOptions& net = options.net;
  std::string host = board ? "" : parse_endpoint(options.endpoint).host;
  std::vector<SocketAddress> resolved;
  while (!host.empty() && (resolved = resolve(host, 0)).empty() && !one_host(options)) {
    if (deadline.passed())
      throw CommError(CommError::Kind::timeout, -1,
                      fmt::format("{}: the name has no address. Check its spelling and the DNS", host));
    std::this_thread::sleep_for(kPause);
  }
  std::string address = resolved.empty() ? "" : resolved.front().text();
  if (net.bind_any) return {wildcard_like(address), "any address was asked for"};
  if (one_host(options)) return {loopback_like(address), "all ranks are on this host"};
  if (resolved.empty()) return {outward_address(net), "it is how this host reaches others"};
  // Some systems resolve a machine's own name to loopback, where the other hosts would not find us.
  bool own_name = is_loopback(resolved.front()) && options.local_size > 0 && address != host && host != "localhost";
  if (own_name) return {outward_address(net), fmt::format("{} is loopback here, and there are other hosts", host)};
  return {address, "it is the endpoint"};
}

// Whether the port is taken by a Hub of the same name and secret: an earlier start of this job, or another run by the
// same user that was given the same port.
bool ours_listens(const HubOptions& at) {
  try {
    std::string fault;
    const Hello tool{Role::store, -1, at.job, 0, 0};
    const std::string address = is_wildcard(numeric_address(at.address, 0)) ? loopback_like(at.address) : at.address;
    return static_cast<bool>(try_connect(address, at.port, at.secret, tool, "", Deadline::after(kFirstAttempt), fault));
  } catch (const CommError&) {
    return false;
  }
}

// On the first of the ports that no other program has.
std::unique_ptr<Hub> listen(HubOptions options, const std::vector<int>& ports, Deadline deadline) {
  const Deadline earlier_run = deadline.earlier(kEarlierRun);
  for (size_t i = 0;;) {
    options.port = ports[i];
    try {
      auto hub = std::make_unique<Hub>(options);
      if (options.port != ports[0])
        options.log.info("another program has port {}; the ranks meet at port {}", ports[0], options.port);
      return hub;
    } catch (const CommError& error) {
      if (ports.size() == 1) throw;
      if (ours_listens(options)) {
        if (earlier_run.passed())
          throw CommError(
              CommError::Kind::refused, -1,
              fmt::format("{} port {}: another run of yours meets there. Give each run a MASTER_PORT of its "
                          "own",
                          options.address, options.port));
        std::this_thread::sleep_for(kPause);
      } else if (++i == ports.size()) {
        throw;
      }
    }
  }
}

std::shared_ptr<Hub> open_hub(const RendezvousOptions& options, std::optional<Board>& board, Deadline deadline) {
  Choice choice = choose_hub_address(options, board, deadline);
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
  auto hub = listen(hub_options, board ? std::vector<int>{0} : hub_ports(options), deadline);
  options.log.debug("the hub listens on {} port {}: {}", hub->address(), hub->port(), choice.why);
  if (!board) return hub;

  std::string address = is_wildcard(numeric_address(hub->address(), 0)) ? outward_address(options.net) : hub->address();
  std::string line = fmt::format("{} {}", address, hub->port());
  board->store.set(board->key, line);
  // Takes its address down again, unless a later hub has put up its own.
  return {hub.release(), [board = *board, line](Hub* owned) mutable {
            delete owned;
            try {
              if (board.store.try_get(board.key) == line) board.store.erase(board.key);
            } catch (const IoError&) {
              // The directory is gone, and with it the address.
            }
          }};
}

// Where to look for the Hub now; empty when that is not known yet.
std::vector<SocketAddress> hub_addresses(const RendezvousOptions& options, std::optional<Board>& board,
                                         const Hub* own) {
  if (own) {
    bool any = is_wildcard(numeric_address(own->address(), 0));
    return {numeric_address(any ? loopback_like(own->address()) : own->address(), own->port())};
  }
  if (board) {
    auto line = board->store.try_get(board->key);
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

// A chosen interface carries what leaves the host.
std::string source_towards(const RendezvousOptions& options, const SocketAddress& at) {
  return is_loopback(at) || options.host_hub ? "" : options.net.interface;
}

// Connects to the Hub wherever it is by then, looking again between attempts: names come late, addresses move, and a
// port may be another program's.
Socket connect_to_hub(const RendezvousOptions& options, std::optional<Board>& board, const Hub* own,
                      Deadline deadline) {
  const auto begun = Clock::now();
  std::string fault =
      board ? fmt::format("{} has not written its address there", server_of(options)) : "the name has no address";
  Duration attempt = kFirstAttempt, pause = kPause;
  const Deadline stale = deadline.earlier(board                                          ? kStaleAddress
                                          : options.port == RendezvousOptions::Port::own ? Duration::zero()
                                                                                         : kOtherPrograms);
  std::map<std::string, Clock::time_point> others;  // ports of other programs: when to try again
  const Hello mine{Role::store, options.rank, options.job, 0, 0};
  while (!deadline.passed()) {
    for (const SocketAddress& at : hub_addresses(options, board, own)) {
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
        // An address in a directory may be of a hub that has gone, and its port a stranger's by now.
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

Choice choose_listen_address(const RendezvousOptions& options, const SocketAddress& towards_hub) {
  std::string local = towards_hub.text();
  if (options.net.bind_any) return {wildcard_like(local), "any address was asked for"};
  if (!options.net.interface.empty())
    return {interface_address(options.net.interface), fmt::format("it matches \"{}\"", options.net.interface)};
  if (one_host(options) || is_loopback(towards_hub)) return {loopback_like(local), "all ranks are on this host"};
  return {local, "it is on the route to the hub"};
}

// Who listens everywhere still has to say where: the Hub's own host reaches it by loopback, which helps nobody else.
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
    throw UsageError(fmt::format("{} {} of {}: numbers go from 0 to {}", options.member, options.rank, options.size,
                                 options.size - 1));
  if (options.secret.bytes().empty())
    throw UsageError(
        "no secret: write 32 random bytes into a file of mode 0600 on every host and name it in ESPALIER_SECRET_FILE");
}

// The store of the Hub that answers now, and who is where. Empty when that Hub went away before the table was complete:
// an earlier job's, most likely, on its way out.
std::shared_ptr<HubStore> join_hub(const RendezvousOptions& options, std::optional<Board>& board, World& world,
                                   std::string& fault, Deadline deadline) {
  std::shared_ptr<HubStore> store;
  const auto begun = Clock::now();
  try {
    // 1. The store.
    Socket socket = connect_to_hub(options, board, world.hub.get(), deadline);
    SocketAddress towards_hub = local_address(socket.fd());
    store = std::make_shared<HubStore>(
        std::move(socket), HubStore::Options{options.net.start_timeout, options.net.link_timeout, server_of(options)},
        deadline);
    world.job = store->welcome().job;

    // 2. A door for our peers.
    Choice choice = choose_listen_address(options, towards_hub);
    world.listener = std::make_shared<Listener>(choice.address, 0, options.secret, world.job, nullptr, options.encrypt);
    world.listener->refuse_if([fate = world.fate](const Hello& hello) { return fate->lost(hello.rank); });
    options.log.debug("listening for peers on {} port {}: {}", choice.address, world.listener->port(), choice.why);

    // 3. Who is where.
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
                      fmt::format("{}, within {:g} s ({}). Start every {} and give all of them one meeting place",
                                  error.what(), seconds_since(begun), options.timeout_option, options.member));
    bool went_away = store ? store->broken() : error.kind() == CommError::Kind::lost;
    if (!went_away || world.hub || deadline.passed()) throw;
    fault = error.what();
    options.log.debug("trying again: {}", fault);
    std::this_thread::sleep_for(kPause);
    return nullptr;
  }
}

}  // namespace

std::unique_ptr<World> rendezvous(const RendezvousOptions& asked, Deadline deadline) {
  if (asked.endpoint.starts_with(kMpiScheme))
    return mpi_world(asked.endpoint.substr(kMpiScheme.size()), asked.net, asked.log, asked.encrypt);
  check_options(asked);
  RendezvousOptions options = asked;
  // A rank alone meets nobody: any port will do.
  if (options.size == 1 && options.endpoint.empty()) {
    options.endpoint = "tcp://127.0.0.1:0";
    options.host_hub = true;
  }
  sweep_segments();
  auto world = std::make_unique<World>();
  world->rank = options.rank;
  world->size = options.size;
  world->secret = options.secret;
  world->options = options.net;
  world->log = options.log;
  world->fate = std::make_shared<Fate>();

  auto board = board_of(options);
  if (options.host_hub) world->hub = open_hub(options, board, deadline);
  std::shared_ptr<HubStore> store;
  for (std::string fault; !store;) {
    if (deadline.passed())
      throw CommError(CommError::Kind::timeout, -1,
                      fmt::format("the {}s did not find each other in time ({}): {}", options.member,
                                  options.timeout_option, fault));
    store = join_hub(options, board, *world, fault, deadline);
  }
  world->store = store;
  if (static_cast<int>(world->peers.size()) != options.size)
    throw CommError(CommError::Kind::corrupt, -1,
                    fmt::format("{} lists {} {}s; expected {}", server_of(options), world->peers.size(), options.member,
                                options.size));
  // The very Hub that gave us the table, whoever may have put up an address since.
  const SocketAddress hub = remote_address(store->fd());
  Socket socket = connect_to(hub.text(), hub.port(), options.secret, {Role::watch, options.rank, options.job, 0, 0},
                             source_towards(options, hub), deadline);
  world->watch = std::make_shared<HubWatch>(std::move(socket), *world, store->welcome().hub_rank);
  return world;
}

}  // namespace esp::net
