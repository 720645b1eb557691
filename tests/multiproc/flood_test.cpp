// Strangers at the door: ten thousand connections that say nothing, or nonsense, to every port of a job while it works.
// No rank fails, sums stay right, and members still find each other. Loopback only, a bounded number.
#include <gtest/gtest.h>

#include <arpa/inet.h>
#include <fcntl.h>
#include <netinet/in.h>
#include <poll.h>
#include <sys/socket.h>

#include <atomic>
#include <deque>
#include <thread>

#include <fmt/format.h>

#include "esp/base/rng.h"
#include "esp/net/socket.h"
#include "tests/multiproc/job.h"

namespace esp::multiproc {
namespace {

using namespace std::chrono_literals;

constexpr int kStrangers = 10'000;
constexpr size_t kLingering = 100;  // that stay, silent, until others take their place

// Sums and splits until the test has said so to rank 0. A split opens connections, through the same doors.
void work_until_told(Rank& self) {
  self.comm.barrier();
  self.parent.say(std::to_string(self.world.peers[static_cast<size_t>(self.world.rank)].port));
  std::atomic<bool> told{false};
  std::thread ear;
  if (self.world.rank == 0)
    ear = std::thread([&] {
      self.parent.hear(Deadline::after(200s));
      told = true;
    });
  std::string failure;
  int rounds = 0, splits = 0;
  try {
    for (int32_t stop = 0; stop == 0; ++rounds) {
      std::vector<int32_t> data(50'000, self.world.rank + rounds);
      self.comm.all_reduce(data.data(), data.data(), data.size(), DType::i32, comm::ReduceOp::sum);
      int32_t want = self.world.size * (self.world.size - 1) / 2 + rounds * self.world.size;
      for (int32_t value : data)
        if (value != want) throw std::runtime_error(fmt::format("{} is not {}", value, want));
      if (rounds % 50 == 0) {
        self.comm.split(0, -self.world.rank)->barrier();
        ++splits;
      }
      stop = told ? 1 : 0;
      self.comm.all_reduce(&stop, &stop, 1, DType::i32, comm::ReduceOp::max);
    }
  } catch (const std::exception& error) {
    failure = error.what();
  }
  self.parent.say(failure.empty() ? fmt::format("worked, {} rounds and {} splits", rounds, splits) : failure);
  if (ear.joinable()) ear.join();
}

// One stranger. Returns its socket if it got as far as the door.
net::Socket knock(int port, int number) {
  net::Socket socket(::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0));
  sockaddr_in address{};
  address.sin_family = AF_INET;
  address.sin_port = htons(static_cast<uint16_t>(port));
  address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  linger reset{1, 0};  // leaves no port behind that waits for its minute
  setsockopt(socket.fd(), SOL_SOCKET, SO_LINGER, &reset, sizeof reset);
  (void)connect(socket.fd(), reinterpret_cast<sockaddr*>(&address), sizeof address);
  pollfd item{socket.fd(), POLLOUT, 0};
  if (poll(&item, 1, 100) != 1 || (item.revents & (POLLERR | POLLHUP))) return net::Socket(-1);
  char nonsense[96];
  for (size_t i = 0; i < sizeof nonsense; ++i)
    nonsense[i] = static_cast<char>(random_bits(13, static_cast<uint64_t>(number), i));
  if (number % 4 == 1) (void)send(socket.fd(), "GET / HTTP/1.0\r\n\r\n", 18, MSG_NOSIGNAL);
  if (number % 4 == 2) (void)send(socket.fd(), nonsense, sizeof nonsense, MSG_NOSIGNAL);
  if (number % 4 == 3) (void)send(socket.fd(), nonsense, 3, MSG_NOSIGNAL);
  return socket;
}

TEST(Flood, OfStrangersFailsNoRank) {
  JobOptions options;
  options.size = 3;
  options.comm.transport = "tcp";
  options.comm.timeout = 60s;
  Job job(options, work_until_told);
  std::vector<int> ports = {job.hub_port()};
  for (int r = 0; r < job.size(); ++r) ports.push_back(std::stoi(job.rank(r).hear()));

  std::deque<net::Socket> lingering;
  int arrived = 0;
  for (int i = 0; i < kStrangers; ++i) {
    net::Socket stranger = knock(ports[static_cast<size_t>(i / 4) % ports.size()], i);
    if (stranger.fd() < 0) continue;
    ++arrived;
    if (i % 4 != 0) continue;
    lingering.push_back(std::move(stranger));
    if (lingering.size() > kLingering) lingering.pop_front();
  }
  EXPECT_GT(arrived, kStrangers / 2) << "the test did not get to the doors";
  job.rank(0).say("enough");
  for (int r = 0; r < job.size(); ++r) {
    std::string said = job.rank(r).hear(Deadline::after(120s));
    EXPECT_EQ(said.rfind("worked, ", 0), 0u) << "rank " << r << ": " << said;
    if (r == 0) fmt::print("{} of {} strangers got to a door; {}\n", arrived, kStrangers, said);
  }
  job.expect_all("bye");
}

}  // namespace
}  // namespace esp::multiproc
