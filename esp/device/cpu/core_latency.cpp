// Core-to-core latency probe: two pinned threads pass one cache line back and forth (ping-pong). The result is the
// median of short batches, so interrupts and other load on the cores have little effect.
#include <pthread.h>
#include <sched.h>

#include <algorithm>
#include <atomic>
#include <thread>

#include "esp/device/cpu/topology.h"

namespace esp::device {
namespace {

constexpr uint32_t kTripsPerBatch = 200;
constexpr size_t kBatches = 101;
constexpr uint32_t kStop = ~uint32_t{0}, kUnset = kStop - 1;

bool pin(int core) {
  cpu_set_t set;
  CPU_ZERO(&set);
  CPU_SET(core, &set);
  return core >= 0 && core < CPU_SETSIZE && pthread_setaffinity_np(pthread_self(), sizeof set, &set) == 0;
}

struct alignas(64) CacheLine {
  // Odd value: the far thread writes next. Even value: the near thread writes next. The far thread starts the exchange:
  // it stores 0 once it is pinned.
  std::atomic<uint32_t> turn{kUnset};
};

// Spins until `turn` equals `wanted`; checks the clock every 4096 spins. Returns false if the deadline has passed or
// the other thread has stored kStop.
bool await(CacheLine& line, uint32_t wanted, const Deadline& deadline) {
  for (uint32_t spins = 0;; ++spins) {
    uint32_t turn = line.turn.load(std::memory_order_acquire);
    if (turn == wanted) return true;
    if (turn == kStop || (spins % 4096 == 4095 && deadline.passed())) return false;
  }
}

void respond(CacheLine& line, int core, const Deadline& deadline) {
  if (!pin(core)) {
    line.turn.store(kStop, std::memory_order_release);
    return;
  }
  line.turn.store(0, std::memory_order_release);
  for (uint32_t turn = 1; await(line, turn, deadline); turn += 2) line.turn.store(turn + 1, std::memory_order_release);
}

std::vector<double> measure_batches(CacheLine& line, const Deadline& deadline) {
  std::vector<double> batches;  // average ns per one-way transfer, for each batch
  uint32_t turn = 0;
  while (batches.size() < kBatches && !deadline.passed()) {
    const int64_t begin = now_ns();
    for (uint32_t trip = 0; trip < kTripsPerBatch; ++trip) {
      line.turn.store(turn + 1, std::memory_order_release);
      if (!await(line, turn + 2, deadline)) return batches;
      turn += 2;
    }
    batches.push_back(static_cast<double>(now_ns() - begin) / (2.0 * kTripsPerBatch));
  }
  return batches;
}

}  // namespace

std::optional<double> core_latency_ns(int core_a, int core_b, Deadline deadline) {
  if (core_a == core_b) return std::nullopt;
  CacheLine line;
  std::vector<double> batches;
  // Both threads are created here; the caller's affinity is unchanged.
  std::thread far([&] { respond(line, core_b, deadline); });
  std::thread near([&] {
    if (await(line, 0, deadline) && pin(core_a)) batches = measure_batches(line, deadline);
    line.turn.store(kStop, std::memory_order_release);
  });
  near.join();
  far.join();
  if (batches.size() < 3) return std::nullopt;
  auto middle = batches.begin() + static_cast<std::ptrdiff_t>(batches.size() / 2);
  std::nth_element(batches.begin(), middle, batches.end());
  return *middle;
}

std::optional<double> core_latency_ns() {
  std::vector<int> cores = read_topology().cores;
  if (cores.size() < 2) return std::nullopt;
  return core_latency_ns(cores[0], cores[1], Deadline::after_ms(100));
}

}  // namespace esp::device
