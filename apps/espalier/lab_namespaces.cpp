#include "apps/espalier/lab_namespaces.h"

#include <unistd.h>

#include <filesystem>
#include <sstream>

#include <fmt/format.h>

#include "apps/espalier/machine.h"
#include "esp/base/error.h"

namespace esp::app {
namespace {

constexpr auto kPatience = std::chrono::seconds(10);
constexpr const char* kOwn = "esplab-";  // then this process, then the host
constexpr int kPort = 29573;

// Words separated by spaces.
std::string sh(const std::string& line) {
  std::istringstream words(line);
  std::vector<std::string> command;
  for (std::string word; words >> word;) command.push_back(word);
  return run_or_throw(command, kPatience);
}

// Namespaces of labs whose process has ended.
void sweep() {
  std::istringstream lines(sh("ip netns list"));
  for (std::string line; std::getline(lines, line);) {
    const std::string name = line.substr(0, line.find(' '));
    if (!name.starts_with(kOwn)) continue;
    const std::string pid = name.substr(std::string(kOwn).size(), name.rfind('-') - std::string(kOwn).size());
    if (!std::filesystem::exists("/proc/" + pid)) sh("ip netns del " + name);
  }
}

}  // namespace

std::string ShapedHosts::why_not() {
  if (::geteuid() != 0) return "only root may make network namespaces";
  for (const char* program : {"ip", "tc"})
    if (find_program(program).empty()) return fmt::format("there is no {} (package iproute2)", program);
  return "";
}

ShapedHosts::ShapedHosts(int num_hosts, const std::string& rate)
    : prefix_(fmt::format("{}{}", kOwn, ::getpid())), num_hosts_(num_hosts) {
  try {
    sweep();
    make(num_hosts, rate);
  } catch (...) {
    remove();
    throw;
  }
}

ShapedHosts::~ShapedHosts() {
  remove();
}

std::string ShapedHosts::name(int host) const {
  return fmt::format("{}-h{}", prefix_, host);
}

std::string ShapedHosts::address(int host) const {
  return fmt::format("10.78.0.{}", host + 1);
}

void ShapedHosts::make(int num_hosts, const std::string& rate) {
  const auto add = [&](const std::string& one) {
    sh("ip netns add " + one);
    made_.push_back(one);
    sh(fmt::format("ip -n {} link set lo up", one));
  };
  const std::string bridge = prefix_ + "-sw";
  add(bridge);
  sh(fmt::format("ip -n {} link add br0 type bridge", bridge));
  sh(fmt::format("ip -n {} link set br0 up", bridge));
  for (int host = 0; host < num_hosts; ++host) {
    add(name(host));
    sh(fmt::format("ip -n {} link add p{} type veth peer name eth0 netns {}", bridge, host, name(host)));
    sh(fmt::format("ip -n {} link set p{} master br0 up", bridge, host));
    sh(fmt::format("ip -n {} addr add {}/24 dev eth0", name(host), address(host)));
    sh(fmt::format("ip -n {} link set eth0 up", name(host)));
    for (const auto& [where, device] : {std::pair{name(host), std::string("eth0")}, {bridge, fmt::format("p{}", host)}})
      sh(fmt::format("tc -n {} qdisc add dev {} root tbf rate {} burst 256kb latency 400ms", where, device, rate));
  }
}

void ShapedHosts::remove() noexcept {
  for (auto one = made_.rbegin(); one != made_.rend(); ++one) {
    try {
      sh("ip netns del " + *one);
    } catch (const std::exception&) {
      // The next lab removes the leftovers.
    }
  }
  made_.clear();
}

std::vector<Ended> ShapedHosts::run(const std::vector<std::string>& command, int ranks_per_host, Duration limit) const {
  std::vector<Order> orders;
  for (int rank = 0; rank < num_hosts_ * ranks_per_host; ++rank) {
    Order order{{"ip", "netns", "exec", name(rank / ranks_per_host)}, {}};
    order.command.insert(order.command.end(), command.begin(), command.end());
    order.environment = {{"RANK", std::to_string(rank)},
                         {"WORLD_SIZE", std::to_string(num_hosts_ * ranks_per_host)},
                         {"LOCAL_RANK", std::to_string(rank % ranks_per_host)},
                         {"LOCAL_WORLD_SIZE", std::to_string(ranks_per_host)},
                         {"MASTER_ADDR", address(0)},
                         {"MASTER_PORT", std::to_string(kPort)}};
    orders.push_back(order);
  }
  return run_together(orders, limit);
}

uint64_t ShapedHosts::sent_bytes(int host) const {
  return std::stoull(sh(fmt::format("ip netns exec {} cat /sys/class/net/eth0/statistics/tx_bytes", name(host))));
}

}  // namespace esp::app
