// netns_all_reduce INTERFACE ALGORITHM COUNT REPEATS: one rank of all_reduce_test.py. All-reduces COUNT floats REPEATS
// times over the selected transports and checks the sums. Prints one line of JSON: bytes sent to each rank, bytes sent
// by the interface of its host, and the time of each call.
//
// ALGORITHM is a name from the algorithm table, or ring_scattered: a ring in which neighbouring ranks are on different
// hosts, as a round-robin scheduler places them.
#include <cmath>
#include <fstream>
#include <iostream>

#include <nlohmann/json.hpp>

#include "esp/base/error.h"
#include "esp/comm/scheduled_communicator.h"
#include "tests/netns/rank_world.h"

using namespace esp;

namespace {

struct Interface {
  uint64_t bytes = 0, packets = 0;
};

uint64_t read_number(const std::string& path) {
  std::ifstream file(path);
  uint64_t value = 0;
  if (!(file >> value)) throw IoError("cannot read " + path);
  return value;
}

// Bytes that this host has sent so far, read from the counters of its interface.
Interface sent_by_host() {
  const std::string folder = "/sys/class/net/eth0/statistics/";
  return {read_number(folder + "tx_bytes"), read_number(folder + "tx_packets")};
}

std::vector<uint64_t> sent_by_peer(const net::Transport& transport) {
  std::vector<uint64_t> sent(transport.world().peers.size());
  for (int peer = 0; peer < transport.size(); ++peer)
    sent[static_cast<size_t>(transport.group().members[static_cast<size_t>(peer)])] =
        transport.traffic(peer).bytes_sent;
  return sent;
}

std::unique_ptr<comm::Communicator> open(const net::World& world, bool scattered) {
  comm::CommOptions options;
  options.timeout = std::chrono::seconds(60);
  auto world_comm = std::make_unique<comm::ScheduledCommunicator>(world, world.world_group(), options);
  if (!scattered) return world_comm;
  int hosts = world.size / netns::number_from("LOCAL_WORLD_SIZE");
  return world_comm->split(0, netns::number_from("LOCAL_RANK") * hosts + netns::number_from("NODE_RANK"));
}

void run(const std::string& interface, const std::string& name, size_t count, int repeats) {
  auto world = netns::join_world(interface);
  bool scattered = name == "ring_scattered";
  auto comm = open(*world, scattered);
  const net::Transport& transport = *dynamic_cast<comm::ScheduledCommunicator&>(*comm).transport();
  std::vector<float> in(count, static_cast<float>(world->rank + 1)), out(count);
  comm::Call call;
  call.op = comm::Op::all_reduce;
  call.in = in.data();
  call.out = out.data();
  call.count = count;
  call.algorithm = scattered ? "ring" : name;

  comm->run(call);  // the first call opens connections and lets buffers grow
  comm->barrier();
  Interface before = sent_by_host();
  comm->barrier();
  std::vector<uint64_t> sent = sent_by_peer(transport);
  std::vector<double> ms;
  for (int i = 0; i < repeats; ++i) {
    auto begun = Clock::now();
    comm->run(call);
    ms.push_back(std::chrono::duration<double, std::milli>(Clock::now() - begun).count());
  }
  std::vector<uint64_t> sent_after = sent_by_peer(transport);
  comm->barrier();
  Interface after = sent_by_host();
  for (size_t i = 0; i < sent.size(); ++i) sent[i] = sent_after[i] - sent[i];

  float want = static_cast<float>(world->size * (world->size + 1)) / 2;
  for (float value : out)
    if (value != want)
      throw CommError(CommError::Kind::corrupt, world->rank,
                      fmt::format("all-reduce: got {}; expected {}", value, want));
  std::cout << nlohmann::json{{"rank", world->rank},
                              {"transport", transport.name()},
                              {"sent", sent},
                              {"interface_bytes", after.bytes - before.bytes},
                              {"interface_packets", after.packets - before.packets},
                              {"ms", ms}}
            << std::endl;
}

}  // namespace

int main(int argc, char** argv) {
  if (argc != 5) return std::cerr << "usage: netns_all_reduce INTERFACE ALGORITHM COUNT REPEATS\n", 2;
  try {
    run(argv[1], argv[2], std::stoul(argv[3]), std::stoi(argv[4]));
    return 0;
  } catch (const Error& error) {
    std::cerr << error.what() << "\n";
    return static_cast<int>(error.exit_code());
  }
}
