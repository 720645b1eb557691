#include "tests/netns/rank_world.h"

#include <cstdlib>

#include "esp/base/error.h"
#include "esp/net/rendezvous.h"

namespace esp::netns {

using namespace esp::net;

int number_from(const char* variable) {
  const char* text = std::getenv(variable);
  if (!text) throw UsageError(std::string(variable) + " is not set; netns.py sets it");
  return std::atoi(text);
}

std::unique_ptr<World> join_world(const std::string& interface) {
  RendezvousOptions options;
  options.rank = number_from("RANK");
  options.size = number_from("WORLD_SIZE");
  options.local_size = number_from("LOCAL_WORLD_SIZE");
  options.host_hub = options.rank == 0;
  const char* address = std::getenv("MASTER_ADDR");
  std::string host = address ? address : "";
  if (host.find(':') != std::string::npos) host = "[" + host + "]";
  options.endpoint = "tcp://" + host + ":" + std::to_string(number_from("MASTER_PORT"));
  options.job = "netns";
  options.secret = Secret(std::string(32, 'n'));
  options.net.interface = interface;
  options.log = Log(LogLevel::warn, options.rank);
  return rendezvous(options, Deadline::after_ms(30'000));
}

}  // namespace esp::netns
