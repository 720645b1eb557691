#include "apps/espalier/lab_namespaces.h"

#include <unistd.h>

#include <filesystem>
#include <sstream>

#include <fmt/format.h>

#include "apps/espalier/machine.h"
#include "esp/base/error.h"

namespace esp::app {
namespace {

constexpr auto kCommandTimeout = std::chrono::seconds(10);
constexpr const char* kNamePrefix = "esplab-";  // a namespace is named esplab-, process id, host index
constexpr int kPort = 29573;

// Runs a command line (words separated by spaces) and returns its output.
std::string run_command(const std::string& line) {
  std::istringstream words(line);
  std::vector<std::string> command;
  for (std::string word; words >> word;) command.push_back(word);
  return run_or_throw(command, kCommandTimeout);
}

// Removes namespaces of earlier labs whose process has ended.
void remove_leftovers() {
  std::istringstream lines(run_command("ip netns list"));
  for (std::string line; std::getline(lines, line);) {
    const std::string name = line.substr(0, line.find(' '));
    if (!name.starts_with(kNamePrefix)) continue;
    const std::string pid =
        name.substr(std::string(kNamePrefix).size(), name.rfind('-') - std::string(kNamePrefix).size());
    if (!std::filesystem::exists("/proc/" + pid)) run_command("ip netns del " + name);
  }
}

}  // namespace

std::string ShapedHosts::unavailable_reason() {
  if (::geteuid() != 0) return "only root can create network namespaces";
  for (const char* program : {"ip", "tc"})
    if (find_program(program).empty()) return fmt::format("{} is not in PATH (package iproute2)", program);
  return "";
}

ShapedHosts::ShapedHosts(int num_hosts, const std::string& rate)
    : prefix_(fmt::format("{}{}", kNamePrefix, ::getpid())), num_hosts_(num_hosts) {
  try {
    remove_leftovers();
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
    run_command("ip netns add " + one);
    made_.push_back(one);
    run_command(fmt::format("ip -n {} link set lo up", one));
  };
  const std::string bridge = prefix_ + "-sw";
  add(bridge);
  run_command(fmt::format("ip -n {} link add br0 type bridge", bridge));
  run_command(fmt::format("ip -n {} link set br0 up", bridge));
  for (int host = 0; host < num_hosts; ++host) {
    add(name(host));
    run_command(fmt::format("ip -n {} link add p{} type veth peer name eth0 netns {}", bridge, host, name(host)));
    run_command(fmt::format("ip -n {} link set p{} master br0 up", bridge, host));
    run_command(fmt::format("ip -n {} addr add {}/24 dev eth0", name(host), address(host)));
    run_command(fmt::format("ip -n {} link set eth0 up", name(host)));
    for (const auto& [where, device] : {std::pair{name(host), std::string("eth0")}, {bridge, fmt::format("p{}", host)}})
      run_command(
          fmt::format("tc -n {} qdisc add dev {} root tbf rate {} burst 256kb latency 400ms", where, device, rate));
  }
}

void ShapedHosts::remove() noexcept {
  for (auto one = made_.rbegin(); one != made_.rend(); ++one) {
    try {
      run_command("ip netns del " + *one);
    } catch (const std::exception&) {
      // The next lab removes namespaces that remain.
    }
  }
  made_.clear();
}

std::vector<ChildResult> ShapedHosts::run(const std::vector<std::string>& command, int ranks_per_host,
                                          Duration limit) const {
  std::vector<ChildCommand> orders;
  for (int rank = 0; rank < num_hosts_ * ranks_per_host; ++rank) {
    ChildCommand order{{"ip", "netns", "exec", name(rank / ranks_per_host)}, {}};
    order.command.insert(order.command.end(), command.begin(), command.end());
    order.environment = {{"RANK", std::to_string(rank)},
                         {"WORLD_SIZE", std::to_string(num_hosts_ * ranks_per_host)},
                         {"LOCAL_RANK", std::to_string(rank % ranks_per_host)},
                         {"LOCAL_WORLD_SIZE", std::to_string(ranks_per_host)},
                         {"MASTER_ADDR", address(0)},
                         {"MASTER_PORT", std::to_string(kPort)}};
    orders.push_back(order);
  }
  return run_children(orders, limit);
}

uint64_t ShapedHosts::sent_bytes(int host) const {
  return std::stoull(
      run_command(fmt::format("ip netns exec {} cat /sys/class/net/eth0/statistics/tx_bytes", name(host))));
}

}  // namespace esp::app
