#include "esp/launch/elastic.h"

#include <sys/socket.h>

#include <thread>

#include <fmt/format.h>

#include "esp/base/error.h"
#include "esp/launch/elastic_rendezvous.h"
#include "esp/net/address.h"
#include "esp/net/socket.h"

namespace esp::launch {
namespace {

constexpr auto kPollInterval = std::chrono::milliseconds(50);
// After min_nodes hosts have connected, host 0 waits this long for further hosts.
constexpr Duration kExtraHostsWait = std::chrono::seconds(2);

// The hosts that take part in the job. Host 0 uses this list to choose the members of the next epoch.
class HostMembership {
 public:
  HostMembership(ElasticRendezvous& rendezvous, const AgentOptions& options)
      : rendezvous_(rendezvous), options_(options) {}

  // Waits until min_nodes hosts have connected, and then up to kExtraHostsWait for the remaining ones.
  void wait_for_min_hosts(Deadline deadline) {
    while (rendezvous_.num_hosts() < options_.min_nodes) {
      if (deadline.passed())
        throw CommError(
            CommError::Kind::timeout, -1,
            fmt::format("elastic launch: got {} hosts within {:g} s (--rdzv-timeout); expected at least {} (--nnodes)",
                        rendezvous_.num_hosts(), std::chrono::duration<double>(options_.net.start_timeout).count(),
                        options_.min_nodes));
      std::this_thread::sleep_for(kPollInterval);
    }
    const Deadline last_call = deadline.earlier(kExtraHostsWait);
    while (rendezvous_.num_hosts() < options_.num_nodes && !last_call.passed())
      std::this_thread::sleep_for(kPollInterval);
  }

  bool can_add_host() const {
    return rendezvous_.num_hosts() > num_seen_ && static_cast<int>(present_.size()) < options_.num_nodes;
  }

  void remove(const std::vector<int>& places) {
    for (auto place = places.rbegin(); place != places.rend(); ++place) {
      fmt::print(stderr, "host {} was lost\n", present_[static_cast<size_t>(*place)]);
      present_.erase(present_.begin() + *place);
    }
  }

  Epoch next_epoch(int number) {
    for (; num_seen_ < rendezvous_.num_hosts() && static_cast<int>(present_.size()) < options_.num_nodes; ++num_seen_)
      present_.push_back(num_seen_);
    if (static_cast<int>(present_.size()) < options_.min_nodes)
      throw CommError(CommError::Kind::lost, -1,
                      fmt::format("elastic launch: got {} remaining hosts; expected at least {} (--nnodes)",
                                  present_.size(), options_.min_nodes));
    if (number > 0) fmt::print(stderr, "continuing with {} hosts\n", present_.size());
    return {number, present_, free_endpoint()};
  }

 private:
  std::string free_endpoint() const {
    const net::SocketAddress any = net::numeric_address(rendezvous_.address(), 0);
    const net::Socket probe(::socket(any.family(), SOCK_STREAM | SOCK_CLOEXEC, 0));
    if (!probe || ::bind(probe.fd(), any.get(), any.length) != 0)
      throw CommError(CommError::Kind::refused, -1,
                      fmt::format("{}: cannot bind a port for the next start of the ranks", rendezvous_.address()));
    const bool v6 = rendezvous_.address().find(':') != std::string::npos;
    return fmt::format("{}{}{}:{}", v6 ? "[" : "", rendezvous_.address(), v6 ? "]" : "",
                       net::local_address(probe.fd()).port());
  }

  ElasticRendezvous& rendezvous_;
  const AgentOptions& options_;
  std::vector<int> present_;
  int num_seen_ = 0;  // hosts that were added to present_ so far, including hosts that were lost later
};

}  // namespace

int run_elastic(const AgentOptions& options) {
  const bool first = options.node_rank == 0;
  ElasticRendezvousOptions entering{options.endpoint, first, options.job, options.secret, options.net, options.log};
  ElasticRendezvous rendezvous(entering, Deadline::after(options.net.start_timeout));
  HostMembership members(rendezvous, options);
  if (first) members.wait_for_min_hosts(Deadline::after(options.net.start_timeout));
  int num_restarts = 0;
  for (int number = 0;; ++number) {
    if (first) rendezvous.publish_epoch(members.next_epoch(number));
    const Epoch epoch = rendezvous.wait_for_epoch(number, options.net.start_timeout);
    const int place = epoch.member_index(rendezvous.host_number());
    if (place < 0) continue;  // this host is not a member of the epoch: it waits for the next one
    AgentOptions mine = options;
    mine.num_nodes = static_cast<int>(epoch.members.size());
    mine.node_rank = place;
    mine.endpoint = epoch.endpoint;
    mine.job = fmt::format("{}/epoch-{}", options.job, number);
    mine.environment["ESPALIER_EPOCH"] = std::to_string(number);
    const auto change_requested = [&] {
      if (first && members.can_add_host()) rendezvous.request_change(number);
      return rendezvous.change_requested(number);
    };
    const EpochResult end = run_epoch(mine, change_requested, num_restarts);
    if (end.exit_code) return *end.exit_code;
    if (first) members.remove(end.lost);
  }
}

}  // namespace esp::launch
