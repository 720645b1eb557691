// Rendezvous between two hosts, simulated by two network namespaces with a pair of virtual interfaces that the test
// creates. Needs root; otherwise the test reports that it is skipped.
#include <sched.h>
#include <unistd.h>

#include <cstdlib>
#include <thread>

#include <fmt/format.h>
#include <gtest/gtest.h>

#include "esp/net/child_process.h"
#include "esp/net/listener.h"
#include "esp/net/rendezvous.h"
#include "esp/net/store/hub.h"

namespace esp::net {
namespace {

Deadline soon() {
  return Deadline::after_ms(30'000);
}

bool shell(const std::string& command) {
  return std::system((command + " >/dev/null 2>&1").c_str()) == 0;
}

struct Case {
  const char* name;
  const char* interface;  // configured interface; "": the route decides
  bool bind_any;
  const char* family;
  const char* hosts[2];    // addresses of the two hosts
  const char* listens[2];  // expected listen addresses
};

const Case kCases[] = {
    {"route", "", false, "", {"10.77.1.1", "10.77.1.2"}, {"10.77.1.1", "10.77.1.2"}},
    {"name", "esp0", false, "", {"10.77.1.1", "10.77.1.2"}, {"10.77.1.1", "10.77.1.2"}},
    {"cidr", "10.77.1.0/24", false, "", {"10.77.1.1", "10.77.1.2"}, {"10.77.1.1", "10.77.1.2"}},
    {"any", "", true, "", {"10.77.1.1", "10.77.1.2"}, {"0.0.0.0", "0.0.0.0"}},
    {"ipv6", "", false, "-6", {"fd77::1", "fd77::2"}, {"fd77::1", "fd77::2"}},
};

class RendezvousHosts : public testing::TestWithParam<Case> {};

TEST_P(RendezvousHosts, ListensOnChosenAddressAndDetectsKilledRank) {
  if (geteuid() != 0) GTEST_SKIP() << "network namespaces need root";
  const Case& c = GetParam();
  std::vector<ChildProcess> hosts;
  for (int rank = 0; rank < 2; ++rank)
    hosts.emplace_back([&, rank](ChildProcess& parent) {
      parent.write_line(unshare(CLONE_NEWNET) == 0 ? "isolated" : "refused");
      std::string link = parent.read_line();
      bool up = shell("ip link set lo up") && shell(fmt::format("ip link set {} name esp0", link)) &&
                shell(fmt::format("ip {} addr add {}/{} dev esp0 {}", c.family, c.hosts[rank], *c.family ? 64 : 24,
                                  *c.family ? "nodad" : "")) &&
                shell("ip link set esp0 up");
      parent.write_line(up ? "up" : "down");
      RendezvousOptions options;
      options.rank = rank;
      options.size = 2;
      options.local_size = 1;
      options.host_hub = rank == 0;
      options.endpoint =
          *c.family ? fmt::format("tcp://[{}]:29777", c.hosts[0]) : fmt::format("tcp://{}:29777", c.hosts[0]);
      options.secret = Secret(std::string(32, 's'));
      options.job = "hosts";
      options.net.interface = c.interface;
      options.net.bind_any = c.bind_any;
      auto world = rendezvous(options, soon());
      HandshakeRequest request{Role::data, rank, world->job, 1, 0};
      const Peer& other = world->peers[static_cast<size_t>(1 - rank)];
      Socket out = connect_to(other.address, other.port, options.secret, request, c.interface, soon());
      Socket in = world->listener->take(1, 1 - rank, 0, soon());
      parent.write_line(fmt::format("{} {} {}", world->listener->address(), other.address,
                                    world->same_host(0, 1) ? "one host" : "two hosts"));
      for (auto deadline = soon(); !world->peer_status->is_lost(1) && !deadline.passed();)
        std::this_thread::sleep_for(std::chrono::milliseconds(1));
      parent.write_line(world->peer_status->is_lost(1) ? "rank 1 is lost" : "nothing");
    });
  for (ChildProcess& host : hosts)
    if (host.read_line() != "isolated") GTEST_SKIP() << "this machine does not allow network namespaces";
  std::string names[2] = {fmt::format("espa{}", getpid()), fmt::format("espb{}", getpid())};
  if (!shell(fmt::format("ip link add {} type veth peer name {}", names[0], names[1])))
    GTEST_SKIP() << "this machine does not allow virtual interfaces";
  for (size_t rank = 0; rank < 2; ++rank) {
    ASSERT_TRUE(shell(fmt::format("ip link set {} netns {}", names[rank], hosts[rank].pid())));
    hosts[rank].write_line(names[rank]);
  }
  for (ChildProcess& host : hosts) ASSERT_EQ(host.read_line(), "up");
  for (size_t rank = 0; rank < 2; ++rank)
    EXPECT_EQ(hosts[rank].read_line(), fmt::format("{} {} two hosts", c.listens[rank], c.hosts[1 - rank]));
  hosts[1].kill(SIGKILL);
  EXPECT_EQ(hosts[0].read_line(), "rank 1 is lost");
}

INSTANTIATE_TEST_SUITE_P(Networks, RendezvousHosts, testing::ValuesIn(kCases),
                         [](const auto& row) { return std::string(row.param.name); });

}  // namespace
}  // namespace esp::net
