#include "esp/launch/elastic.h"

#include <sys/socket.h>

#include <thread>

#include <fmt/format.h>

#include "esp/base/error.h"
#include "esp/launch/lobby.h"
#include "esp/net/address.h"
#include "esp/net/socket.h"

namespace esp::launch {
namespace {

constexpr auto kLook = std::chrono::milliseconds(50);
constexpr Duration kLastCall = std::chrono::seconds(2);  // for more hosts, once there are enough

// As the first host sees it: who is in, and who is called next.
class Members {
 public:
  Members(Lobby& lobby, const AgentOptions& options) : lobby_(lobby), options_(options) {}

  // Returns when enough are there.
  void gather(Deadline deadline) {
    while (lobby_.num_arrived() < options_.least_nodes) {
      if (deadline.passed())
        throw CommError(
            CommError::Kind::timeout, -1,
            fmt::format("{} of at least {} hosts came within {:g} s (--rdzv-timeout)", lobby_.num_arrived(),
                        options_.least_nodes, std::chrono::duration<double>(options_.net.start_timeout).count()));
      std::this_thread::sleep_for(kLook);
    }
    const Deadline last_call = deadline.earlier(kLastCall);
    while (lobby_.num_arrived() < options_.num_nodes && !last_call.passed()) std::this_thread::sleep_for(kLook);
  }

  bool has_room_for_more() const {
    return lobby_.num_arrived() > num_seen_ && static_cast<int>(present_.size()) < options_.num_nodes;
  }

  void lose(const std::vector<int>& places) {
    for (auto place = places.rbegin(); place != places.rend(); ++place) {
      fmt::print(stderr, "host {} was lost\n", present_[static_cast<size_t>(*place)]);
      present_.erase(present_.begin() + *place);
    }
  }

  Epoch next(int number) {
    for (; num_seen_ < lobby_.num_arrived() && static_cast<int>(present_.size()) < options_.num_nodes; ++num_seen_)
      present_.push_back(num_seen_);
    if (static_cast<int>(present_.size()) < options_.least_nodes)
      throw CommError(CommError::Kind::lost, -1,
                      fmt::format("{} of at least {} hosts are left", present_.size(), options_.least_nodes));
    if (number > 0) fmt::print(stderr, "going on with {} hosts\n", present_.size());
    return {number, present_, free_endpoint()};
  }

 private:
  std::string free_endpoint() const {
    const net::SocketAddress any = net::numeric_address(lobby_.address(), 0);
    const net::Socket probe(::socket(any.family(), SOCK_STREAM | SOCK_CLOEXEC, 0));
    if (!probe || ::bind(probe.fd(), any.get(), any.length) != 0)
      throw CommError(CommError::Kind::refused, -1, fmt::format("cannot take a port on {}", lobby_.address()));
    const bool v6 = lobby_.address().find(':') != std::string::npos;
    return fmt::format("{}{}{}:{}", v6 ? "[" : "", lobby_.address(), v6 ? "]" : "",
                       net::local_address(probe.fd()).port());
  }

  Lobby& lobby_;
  const AgentOptions& options_;
  std::vector<int> present_;
  int num_seen_ = 0;  // of those that came
};

}  // namespace

int run_elastic(const AgentOptions& options) {
  const bool first = options.node_rank == 0;
  LobbyOptions entering{options.endpoint, first, options.job, options.secret, options.net, options.log};
  Lobby lobby(entering, Deadline::after(options.net.start_timeout));
  Members members(lobby, options);
  if (first) members.gather(Deadline::after(options.net.start_timeout));
  int num_restarts = 0;
  for (int number = 0;; ++number) {
    if (first) lobby.call(members.next(number));
    const Epoch epoch = lobby.await(number, options.net.start_timeout);
    const int place = epoch.place_of(lobby.number());
    if (place < 0) continue;  // this host came later: the next is for it too
    AgentOptions mine = options;
    mine.num_nodes = static_cast<int>(epoch.members.size());
    mine.node_rank = place;
    mine.endpoint = epoch.endpoint;
    mine.job = fmt::format("{}/epoch-{}", options.job, number);
    mine.environment["ESPALIER_EPOCH"] = std::to_string(number);
    const auto change_is_due = [&] {
      if (first && members.has_room_for_more()) lobby.say_change_is_due(number);
      return lobby.change_is_due(number);
    };
    const EpochEnd end = run_epoch(mine, change_is_due, num_restarts);
    if (end.exit_code) return *end.exit_code;
    if (first) members.lose(end.lost);
  }
}

}  // namespace esp::launch
