// netns_rank TRANSPORT INTERFACE: one rank of netns_test.py. Connects to all ranks, exchanges messages of several sizes
// with each rank, checks every byte, and prints the transport's counters per peer as one line of JSON.
#include <iostream>

#include <nlohmann/json.hpp>

#include "esp/base/error.h"
#include "esp/base/rng.h"
#include "esp/net/transport.h"
#include "tests/netns/rank_world.h"

using namespace esp;
using namespace esp::net;

namespace {

constexpr size_t kSizes[] = {0, 1, 1000, 65'537, 300'000, 4 << 20};

std::vector<std::byte> contents(int from, int to, size_t bytes) {
  std::vector<std::byte> data(bytes);
  uint64_t pair = static_cast<uint64_t>(from) * 1000 + static_cast<uint64_t>(to);
  for (size_t i = 0; i < bytes; ++i) data[i] = static_cast<std::byte>(random_bits(11, pair, i / 64) >> (i % 8) * 8);
  return data;
}

struct Message {
  std::vector<std::byte> data;
  Transfer transfer;
};

void exchange(Transport& transport) {
  std::vector<std::unique_ptr<Message>> messages;
  for (int peer = 0; peer < transport.size(); ++peer) {
    if (peer == transport.rank()) continue;
    for (size_t bytes : kSizes)
      for (bool sending : {true, false}) {
        auto& message = *messages.emplace_back(std::make_unique<Message>());
        message.data = sending ? contents(transport.rank(), peer, bytes) : std::vector<std::byte>(bytes);
        message.transfer.peer = peer;
        message.transfer.data = message.data.data();
        message.transfer.bytes = bytes;
        message.transfer.tag.sequence = bytes;
        sending ? transport.send(message.transfer) : transport.receive(message.transfer);
      }
  }
  Deadline deadline = Deadline::after_ms(60'000);
  for (auto& message : messages)
    while (message->transfer.state == Transfer::State::posted) {
      if (deadline.passed())
        throw CommError(CommError::Kind::timeout, message->transfer.peer, "a transfer did not complete within 60 s");
      if (!transport.poll()) transport.sleep(deadline);
    }
  for (size_t i = 1; i < messages.size(); i += 2) {
    const Message& message = *messages[i];
    if (message.data != contents(message.transfer.peer, transport.rank(), message.data.size()))
      throw CommError(CommError::Kind::corrupt, message.transfer.peer, "a received message differs from the sent one");
  }
}

void run(const std::string& transport_name, const std::string& interface) {
  auto world = netns::join_world(interface);
  auto transport = open_transport(transport_name, *world, world->world_group());
  exchange(*transport);
  nlohmann::json report{{"rank", world->rank},
                        {"host", world->peers[static_cast<size_t>(world->rank)].host},
                        {"transport", transport->name()},
                        {"peers", nlohmann::json::array()}};
  for (int peer = 0; peer < world->size; ++peer) {
    const Traffic& traffic = transport->traffic(peer);
    report["peers"].push_back({{"bytes_sent", traffic.bytes_sent},
                               {"header_bytes_sent", traffic.header_bytes_sent},
                               {"bytes_received", traffic.bytes_received},
                               {"messages_received", traffic.messages_received}});
  }
  std::cout << report << std::endl;
}

}  // namespace

int main(int argc, char** argv) {
  if (argc != 3) return std::cerr << "usage: netns_rank TRANSPORT INTERFACE\n", 2;
  try {
    run(argv[1], argv[2]);
    return 0;
  } catch (const Error& error) {
    std::cerr << error.what() << "\n";
    return static_cast<int>(error.exit_code());
  }
}
