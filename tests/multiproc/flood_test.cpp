// Connection flood: 10 000 connections that send nothing, or invalid data, to every port of a running job. The
// connection limit must protect the job: no rank fails, sums stay correct, and ranks can still connect to each other.
// Loopback only.
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

constexpr int kNumConnections = 10'000;
// Maximum number of silent connections that the test keeps open. When it is exceeded, the oldest is closed.
constexpr size_t kMaxOpenConnections = 100;

// Repeats sums and splits until the test sends a line to rank 0. Each split opens new connections through the flooded
// ports.
void work_until_stopped(RankContext& self) {
  self.comm.barrier();
  self.parent.write_line(std::to_string(self.world.peers[static_cast<size_t>(self.world.rank)].port));
  std::atomic<bool> reported{false};
  std::thread stop_reader;
  if (self.world.rank == 0)
    stop_reader = std::thread([&] {
      self.parent.read_line(Deadline::after(200s));
      reported = true;
    });
  std::string failure;
  int rounds = 0, splits = 0;
  try {
    for (int32_t stop = 0; stop == 0; ++rounds) {
      std::vector<int32_t> data(50'000, self.world.rank + rounds);
      self.comm.all_reduce(data.data(), data.data(), data.size(), DType::i32, comm::ReduceOp::sum);
      int32_t want = self.world.size * (self.world.size - 1) / 2 + rounds * self.world.size;
      for (int32_t value : data)
        if (value != want) throw std::runtime_error(fmt::format("all-reduce: got {}; expected {}", value, want));
      if (rounds % 50 == 0) {
        self.comm.split(0, -self.world.rank)->barrier();
        ++splits;
      }
      stop = reported ? 1 : 0;
      self.comm.all_reduce(&stop, &stop, 1, DType::i32, comm::ReduceOp::max);
    }
  } catch (const std::exception& error) {
    failure = error.what();
  }
  self.parent.write_line(failure.empty() ? fmt::format("worked, {} rounds and {} splits", rounds, splits) : failure);
  if (stop_reader.joinable()) stop_reader.join();
}

// Opens one connection and sends up to 96 invalid bytes. Returns the socket if the connection was accepted.
net::Socket open_flood_connection(int port, int number) {
  net::Socket socket(::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0));
  sockaddr_in address{};
  address.sin_family = AF_INET;
  address.sin_port = htons(static_cast<uint16_t>(port));
  address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  linger reset{1, 0};  // resets the connection on close; otherwise its local port would stay in TIME_WAIT for a minute
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

TEST(ConnectionFlood, NoRankFailsDuringFlood) {
  JobOptions options;
  options.size = 3;
  options.comm.transport = "tcp";
  options.comm.timeout = 60s;
  Job job(options, work_until_stopped);
  std::vector<int> ports = {job.hub_port()};
  for (int r = 0; r < job.size(); ++r) ports.push_back(std::stoi(job.rank(r).read_line()));

  std::deque<net::Socket> open_connections;
  int arrived = 0;
  for (int i = 0; i < kNumConnections; ++i) {
    net::Socket connection = open_flood_connection(ports[static_cast<size_t>(i / 4) % ports.size()], i);
    if (connection.fd() < 0) continue;
    ++arrived;
    if (i % 4 != 0) continue;
    open_connections.push_back(std::move(connection));
    if (open_connections.size() > kMaxOpenConnections) open_connections.pop_front();
  }
  EXPECT_GT(arrived, kNumConnections / 2) << "most connections were not accepted";
  job.rank(0).write_line("stop");
  for (int r = 0; r < job.size(); ++r) {
    std::string reply = job.rank(r).read_line(Deadline::after(120s));
    EXPECT_EQ(reply.rfind("worked, ", 0), 0u) << "rank " << r << ": " << reply;
    if (r == 0) fmt::print("{} of {} flood connections were accepted; {}\n", arrived, kNumConnections, reply);
  }
  job.expect_all("bye");
}

}  // namespace
}  // namespace esp::multiproc
