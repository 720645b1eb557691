#include "apps/espalier/link.h"

#include <fcntl.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <poll.h>
#include <sys/socket.h>

#include <algorithm>
#include <barrier>
#include <cerrno>
#include <cstring>
#include <thread>
#include <vector>

#include "esp/base/clock.h"
#include "esp/base/error.h"
#include "esp/net/socket.h"

namespace esp::app {
namespace {

// Runs `body(thread)` on all threads at once, several times. The time of a run is that of its slowest thread. Returns
// the seconds of the fastest run.
template <typename Body>
double time_concurrent_threads(int num_threads, int rounds, Body body) {
  std::barrier start_barrier(num_threads);
  std::vector<std::vector<int64_t>> begins(static_cast<size_t>(rounds)), ends(static_cast<size_t>(rounds));
  for (auto* list : {&begins, &ends})
    for (auto& row : *list) row.resize(static_cast<size_t>(num_threads));
  std::vector<std::thread> threads;
  for (int thread = 0; thread < num_threads; ++thread)
    threads.emplace_back([&, thread] {
      for (size_t round = 0; round < static_cast<size_t>(rounds); ++round) {
        start_barrier.arrive_and_wait();
        begins[round][static_cast<size_t>(thread)] = now_ns();
        body(thread);
        ends[round][static_cast<size_t>(thread)] = now_ns();
      }
    });
  for (std::thread& thread : threads) thread.join();
  int64_t best = INT64_MAX;
  for (size_t round = 0; round < static_cast<size_t>(rounds); ++round)
    best = std::min(best, *std::max_element(ends[round].begin(), ends[round].end()) -
                              *std::min_element(begins[round].begin(), begins[round].end()));
  return static_cast<double>(best) * 1e-9;
}

net::Socket tcp_socket() {
  net::Socket socket(::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0));
  int one = 1;
  ::setsockopt(socket.fd(), IPPROTO_TCP, TCP_NODELAY, &one, sizeof one);
  // bbr, if it is the system default, paces loopback traffic and would limit the reference bandwidth.
  ::setsockopt(socket.fd(), IPPROTO_TCP, TCP_CONGESTION, "reno", 4);
  return socket;
}

// Sends and receives `bytes` bytes at the same time, as a rank of a ring does.
void stream(int to, int from, size_t bytes, std::vector<char>& buffer) {
  size_t sent = 0, received = 0;
  while (sent < bytes || received < bytes) {
    bool moved = false;
    if (sent < bytes) {
      ssize_t n = ::send(to, buffer.data(), std::min(buffer.size() / 2, bytes - sent), MSG_DONTWAIT | MSG_NOSIGNAL);
      if (n > 0) sent += static_cast<size_t>(n), moved = true;
    }
    if (received < bytes) {
      ssize_t n =
          ::recv(from, buffer.data() + buffer.size() / 2, std::min(buffer.size() / 2, bytes - received), MSG_DONTWAIT);
      if (n > 0) received += static_cast<size_t>(n), moved = true;
      if (n == 0)
        throw CommError(CommError::Kind::lost, -1,
                        "link ceiling: the loopback connection closed during the measurement");
    }
    if (moved) continue;
    pollfd waiting[2] = {{to, static_cast<short>(sent < bytes ? POLLOUT : 0), 0},
                         {from, static_cast<short>(received < bytes ? POLLIN : 0), 0}};
    ::poll(waiting, 2, 1000);
  }
}

}  // namespace

double measure_copy_gbs(int num_ranks, size_t bytes) {
  bytes = std::clamp<size_t>(bytes, 4096, size_t{64} << 20);
  size_t times = std::max<size_t>(1, (size_t{4} << 20) / bytes);
  std::vector<std::vector<char>> from(static_cast<size_t>(num_ranks)), to(static_cast<size_t>(num_ranks));
  for (auto* side : {&from, &to})
    for (auto& buffer : *side) buffer.assign(bytes, 1);
  double seconds = time_concurrent_threads(num_ranks, 5, [&](int rank) {
    auto r = static_cast<size_t>(rank);
    for (size_t i = 0; i < times; ++i) {
      std::memcpy(to[r].data(), from[r].data(), bytes);
      asm volatile("" : : "r"(to[r].data()) : "memory");  // prevents the compiler from merging the copies
    }
  });
  return static_cast<double>(bytes * times) / seconds * 1e-9;
}

double measure_loopback_gbs(int num_ranks) {
  const size_t n = static_cast<size_t>(num_ranks), bytes = (size_t{128} << 20) / n;
  std::vector<net::Socket> to(n), from(n);
  for (size_t rank = 0; rank < n; ++rank) {
    net::Socket listener = tcp_socket();
    sockaddr_in address{};
    address.sin_family = AF_INET;
    address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    socklen_t length = sizeof address;
    to[rank] = tcp_socket();
    bool up = ::bind(listener.fd(), reinterpret_cast<sockaddr*>(&address), length) == 0 &&
              ::listen(listener.fd(), 1) == 0 &&
              ::getsockname(listener.fd(), reinterpret_cast<sockaddr*>(&address), &length) == 0 &&
              ::connect(to[rank].fd(), reinterpret_cast<sockaddr*>(&address), length) == 0;
    from[(rank + 1) % n] = net::Socket(up ? ::accept4(listener.fd(), nullptr, nullptr, SOCK_CLOEXEC) : -1);
    if (!from[(rank + 1) % n]) throw IoError("cannot measure loopback TCP: " + errno_text(errno));
  }
  std::vector<std::vector<char>> buffers(n, std::vector<char>(size_t{512} << 10, 1));
  double seconds = time_concurrent_threads(num_ranks, 4, [&](int rank) {
    auto r = static_cast<size_t>(rank);
    stream(to[r].fd(), from[r].fd(), bytes, buffers[r]);
  });
  return static_cast<double>(bytes) / seconds * 1e-9;
}

}  // namespace esp::app
