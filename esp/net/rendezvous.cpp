#include "esp/net/rendezvous.h"

#include <unistd.h>

#include <cstring>
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
    throw UsageError(fmt::format("\"{}\" names no absolute directory; give file:///directory", options.endpoint));
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

Choice choose_hub_address(const RendezvousOptions& options, const std::optional<Board>& board, Deadline deadline) {
  const NetOptions& net = options.net;
  std::string host = board ? "" : parse_endpoint(options.endpoint).host;
  std::vector<SocketAddress> resolved;
  while (!host.empty() && (resolved = resolve(host, 0)).empty()) {
    if (deadline.passed())
      throw CommError(CommError::Kind::timeout, -1, fmt::format("\"{}\" does not resolve to any address", host));
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

std::shared_ptr<Hub> open_hub(const RendezvousOptions& options, std::optional<Board>& board, Deadline deadline) {
  Choice choice = choose_hub_address(options, board, deadline);
  HubOptions hub_options;
  hub_options.address = choice.address;
  hub_options.port = board ? 0 : parse_endpoint(options.endpoint).port;
  hub_options.size = options.size;
  hub_options.hub_rank = options.rank;
  hub_options.job = options.job;
  hub_options.secret = options.secret;
  hub_options.linger = options.net.timeout;
  hub_options.log = options.log;
  auto hub = std::make_unique<Hub>(hub_options);
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
  HostPort endpoint = parse_endpoint(options.endpoint);
  auto found = resolve(endpoint.host, endpoint.port);
  if (found.empty() || !one_host(options)) return found;
  return {numeric_address(loopback_like(found.front().text()), endpoint.port)};
}

Socket call_hub(const RendezvousOptions& options, const SocketAddress& at, Role role, Deadline deadline) {
  // A chosen interface carries what leaves the host.
  std::string from = is_loopback(at) || options.host_hub ? "" : options.net.interface;
  return connect_to(at.text(), at.port(), options.secret, {role, options.rank, options.job, 0, 0}, from, deadline);
}

// Connects to the Hub wherever it is by then, looking again between attempts: names come late, addresses move.
Socket connect_to_hub(const RendezvousOptions& options, std::optional<Board>& board, const Hub* own,
                      Deadline deadline) {
  std::string fault = board ? "no hub has left its address in the directory" : "the name does not resolve";
  Duration attempt = kFirstAttempt;
  const Deadline patience = deadline.earlier(kStaleAddress);
  while (!deadline.passed()) {
    for (const SocketAddress& at : hub_addresses(options, board, own)) {
      try {
        return call_hub(options, at, Role::store, deadline.earlier(attempt));
      } catch (const CommError& error) {
        // An address in a directory may be of a hub that has gone, and its port a stranger's by now.
        if (error.kind() == CommError::Kind::refused && (!board || patience.passed())) throw;
        fault = error.what();
        attempt = std::min(2 * attempt, kLastAttempt);
      }
    }
    std::this_thread::sleep_for(std::min<Duration>(kPause, deadline.left()));
  }
  throw CommError(CommError::Kind::timeout, -1,
                  fmt::format("the hub at {} was not reached: {}", options.endpoint, fault));
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
    throw UsageError(fmt::format("rank {} of {} cannot be", options.rank, options.size));
  if (options.secret.bytes().empty())
    throw UsageError("a job needs a secret; on one host net::local_secret() has one, across hosts a secret file");
}

// The store of the Hub that answers now, and who is where. Empty when that Hub went away before the table was complete:
// an earlier job's, most likely, on its way out.
std::shared_ptr<HubStore> join_hub(const RendezvousOptions& options, std::optional<Board>& board, World& world,
                                   std::string& fault, Deadline deadline) {
  std::shared_ptr<HubStore> store;
  try {
    // 1. The store.
    Socket socket = connect_to_hub(options, board, world.hub.get(), deadline);
    SocketAddress towards_hub = local_address(socket.fd());
    store = std::make_shared<HubStore>(std::move(socket), options.net.connect_timeout, deadline);
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
      throw CommError(CommError::Kind::timeout, -1, fmt::format("no rendezvous before the deadline: {}", fault));
    store = join_hub(options, board, *world, fault, deadline);
  }
  world->store = store;
  if (static_cast<int>(world->peers.size()) != options.size)
    throw CommError(CommError::Kind::corrupt, -1,
                    fmt::format("the hub's table has {} ranks, not {}", world->peers.size(), options.size));
  // The very Hub that gave us the table, whoever may have put up an address since.
  Socket socket = call_hub(options, remote_address(store->fd()), Role::watch, deadline);
  world->watch = std::make_shared<HubWatch>(std::move(socket), *world, store->welcome().hub_rank);
  return world;
}

}  // namespace esp::net
