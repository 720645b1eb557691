// tcp_timing [ranks] [rounds]: every rank sends to the next rank and receives from the previous one, at several sizes.
// Received data is stored or added, in one piece or in slices as the communicator makes them. With 2 ranks it also
// times two processes over one plain TCP connection, which is the upper limit. Prints the median over the rounds, on
// the slowest rank.
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <vector>

#include "esp/base/clock.h"
#include "esp/net/tcp/peer_connector.h"
#include "esp/net/tcp/tcp.h"
#include "esp/net/tcp/test_world.h"

using namespace esp;
using namespace esp::net;

namespace {

// Shared memory of all ranks.
struct SharedCounters {
  std::atomic<int> ports[64];
  std::atomic<int> arrived;
  std::atomic<int> plain_port;
};

void barrier(SharedCounters& shared, int size, int& phase) {
  shared.arrived.fetch_add(1);
  ++phase;
  while (shared.arrived.load() < phase * size) sched_yield();
}

void add_floats(const void*, std::byte* dst, const std::byte* src, size_t bytes) {
  auto* to = reinterpret_cast<float*>(dst);
  auto* from = reinterpret_cast<const float*>(src);
  for (size_t i = 0; i < bytes / sizeof(float); ++i) to[i] += from[i];
}

struct Case {
  size_t bytes, slice;
  bool add;
};

// One exchange with both neighbours, in slices; all transfers are started at once.
void exchange(Transport& transport, std::vector<std::byte>& out, std::vector<std::byte>& in, const Case& c,
              std::vector<Transfer>& transfers, uint64_t sequence) {
  int to = (transport.rank() + 1) % transport.size(),
      from = (transport.rank() + transport.size() - 1) % transport.size();
  size_t count = c.slice == 0 ? 1 : (c.bytes + c.slice - 1) / c.slice;
  size_t each = c.slice == 0 ? c.bytes : c.slice;
  transfers.assign(2 * count, {});
  for (size_t i = 0; i < count; ++i) {
    for (bool sending : {true, false}) {
      Transfer& t = transfers[2 * i + (sending ? 0 : 1)];
      t.peer = sending ? to : from;
      t.data = (sending ? out : in).data() + i * each;
      t.bytes = std::min(each, c.bytes - i * each);
      t.tag.sequence = sequence;
      t.tag.step = static_cast<uint32_t>(i);
      if (!sending && c.add) t.apply = add_floats;
      sending ? transport.send(t) : transport.receive(t);
    }
  }
  Deadline deadline = Deadline::after_ms(30'000);
  size_t done = 0;
  while (done < transfers.size()) {
    if (!transport.poll()) transport.sleep(deadline);
    while (done < transfers.size() && transfers[done].state == Transfer::State::done) ++done;
    if (deadline.passed())
      throw CommError(CommError::Kind::timeout, -1, "timeout: an exchange did not finish within 30 s");
  }
}

double median(std::vector<double> v) {
  std::sort(v.begin(), v.end());
  return v[v.size() / 2];
}

int rounds_for(size_t bytes, int rounds) {
  return bytes <= (64 << 10) ? 40 * rounds : bytes <= (1 << 20) ? 8 * rounds : rounds;
}

// The upper limit: two processes exchange data over one plain TCP connection, with alternating nonblocking sends and
// receives of up to 1 MiB. Returns microseconds.
double plain_exchange(int fd, std::vector<std::byte>& out, std::vector<std::byte>& in, size_t bytes) {
  int64_t begin = now_ns();
  size_t sent = 0, got = 0;
  while (sent < bytes || got < bytes) {
    if (sent < bytes) {
      ssize_t n = ::send(fd, out.data() + sent, std::min<size_t>(bytes - sent, 1 << 20), MSG_DONTWAIT | MSG_NOSIGNAL);
      if (n > 0) sent += static_cast<size_t>(n);
    }
    if (got < bytes) {
      ssize_t n = ::recv(fd, in.data() + got, std::min<size_t>(bytes - got, 1 << 20), MSG_DONTWAIT);
      if (n > 0) got += static_cast<size_t>(n);
      if (n == 0) std::abort();
    }
  }
  return static_cast<double>(now_ns() - begin) / 1e3;
}

int plain_connection(SharedCounters& shared, int rank) {
  sockaddr_in address{};
  address.sin_family = AF_INET;
  address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  socklen_t length = sizeof address;
  int fd = socket(AF_INET, SOCK_STREAM, 0);
  if (rank == 0) {
    if (bind(fd, reinterpret_cast<sockaddr*>(&address), length) != 0 || listen(fd, 1) != 0) std::abort();
    getsockname(fd, reinterpret_cast<sockaddr*>(&address), &length);
    shared.plain_port = ntohs(address.sin_port);
    fd = accept(fd, nullptr, nullptr);
  } else {
    while (shared.plain_port == 0) sched_yield();
    address.sin_port = htons(static_cast<uint16_t>(shared.plain_port));
    if (connect(fd, reinterpret_cast<sockaddr*>(&address), length) != 0) std::abort();
  }
  tune_data_socket(fd, true, Log());
  return fd;
}

void run_rank(SharedCounters& shared, int rank, int size, int rounds) {
  NetOptions options;
  if (const char* streams = std::getenv("STREAMS")) options.streams_per_peer = std::atoi(streams);
  if (std::getenv("CHECKSUM")) options.payload_checksum = true;
  int phase = 0;
  auto world = make_listening_world(rank, size, options);
  shared.ports[rank] = world->listener->port();
  barrier(shared, size, phase);
  std::vector<int> ports;
  for (int peer = 0; peer < size; ++peer) ports.push_back(shared.ports[peer]);
  set_peers(*world, ports, std::getenv("STREAMS") == nullptr);
  auto transport = open_tcp(*world, world->world_group());
  int plain = size == 2 ? plain_connection(shared, rank) : -1;

  std::vector<std::byte> out(64 << 20, std::byte{1}), in(64 << 20, std::byte{0});
  std::vector<Transfer> transfers;
  uint64_t sequence = 0;
  if (rank == 0)
    std::printf("%10s %10s %6s %12s %10s %12s %8s\n", "bytes", "slice", "add", "us", "GB/s", "plain us", "ratio");
  const Case cases[] = {{8, 0, false},
                        {1 << 10, 0, false},
                        {1 << 10, 0, true},
                        {64 << 10, 0, false},
                        {64 << 10, 0, true},
                        {1 << 20, 0, false},
                        {1 << 20, 256 << 10, false},
                        {1 << 20, 256 << 10, true},
                        {16 << 20, 0, false},
                        {16 << 20, 256 << 10, false},
                        {16 << 20, 256 << 10, true},
                        {64 << 20, 256 << 10, false},
                        {64 << 20, 256 << 10, true}};
  for (const Case& c : cases) {
    std::vector<double> times, plain_times;
    for (int round = 0; round < rounds_for(c.bytes, rounds) + 3; ++round) {
      int64_t begin = now_ns();
      exchange(*transport, out, in, c, transfers, ++sequence);
      double us = static_cast<double>(now_ns() - begin) / 1e3;
      double plain_us = plain >= 0 ? plain_exchange(plain, out, in, c.bytes) : 0;
      if (round >= 3) times.push_back(us), plain_times.push_back(plain_us);
    }
    if (rank == 0)
      std::printf("%10zu %10zu %6s %12.1f %10.2f %12.1f %8.2f\n", c.bytes, c.slice, c.add ? "add" : "copy",
                  median(times), static_cast<double>(c.bytes) / median(times) / 1e3, median(plain_times),
                  median(plain_times) / median(times));
    std::fflush(stdout);
    barrier(shared, size, phase);
  }
}

}  // namespace

int main(int argc, char** argv) {
  int size = argc > 1 ? std::atoi(argv[1]) : 2, rounds = argc > 2 ? std::atoi(argv[2]) : 15;
  if (size < 2 || size > 64 || rounds < 1) return std::fprintf(stderr, "usage: tcp_timing [2..64 ranks] [rounds]\n"), 2;
  auto* shared = static_cast<SharedCounters*>(
      mmap(nullptr, sizeof(SharedCounters), PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0));
  if (shared == MAP_FAILED) return std::perror("mmap"), 1;
  for (int rank = 0; rank < size; ++rank) {
    if (fork() == 0) {
      try {
        run_rank(*shared, rank, size, rounds);
      } catch (const std::exception& error) {
        std::fprintf(stderr, "rank %d: %s\n", rank, error.what());
        _exit(1);
      }
      _exit(0);
    }
  }
  int failed = 0, status = 0;
  while (wait(&status) > 0) failed |= status != 0;
  return failed;
}
