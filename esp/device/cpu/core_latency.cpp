// Core-to-core latency probe: two pinned threads pass one cache line back and forth. The median of short batches
// tolerates interrupts and noisy neighbours.
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
constexpr uint32_t kStop = ~uint32_t{0}, kNobody = kStop - 1;

bool pin(int core) {
  cpu_set_t set;
  CPU_ZERO(&set);
  CPU_SET(core, &set);
  return core >= 0 && core < CPU_SETSIZE && pthread_setaffinity_np(pthread_self(), sizeof set, &set) == 0;
}

struct alignas(64) Line {
  std::atomic<uint32_t> turn{kNobody};  // odd: the far side's turn; the far side starts with 0 when it is pinned
};

// Spins for `wanted`, checking the clock now and then. False if the deadline passed or the other side gave up.
bool await(Line& line, uint32_t wanted, const Deadline& deadline) {
  for (uint32_t spins = 0;; ++spins) {
    uint32_t turn = line.turn.load(std::memory_order_acquire);
    if (turn == wanted) return true;
    if (turn == kStop || (spins % 4096 == 4095 && deadline.passed())) return false;
  }
}

void answer(Line& line, int core, const Deadline& deadline) {
  if (!pin(core)) {
    line.turn.store(kStop, std::memory_order_release);
    return;
  }
  line.turn.store(0, std::memory_order_release);
  for (uint32_t turn = 1; await(line, turn, deadline); turn += 2) line.turn.store(turn + 1, std::memory_order_release);
}

std::vector<double> ask(Line& line, const Deadline& deadline) {
  std::vector<double> batches;  // ns per transfer
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
  Line line;
  std::vector<double> batches;
  // Both threads are created here; the caller's affinity is unchanged.
  std::thread far([&] { answer(line, core_b, deadline); });
  std::thread near([&] {
    if (await(line, 0, deadline) && pin(core_a)) batches = ask(line, deadline);
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
