// Reusable barrier for the threads of one ThreadPool::run.
//
// A waiting thread spins for a bounded time, then sleeps on a futex. The barrier lives on the caller's stack during the
// run.
#pragma once

#include <atomic>
#include <cstdint>

#include "esp/base/futex.h"

namespace esp::device {

class Barrier {
 public:
  explicit Barrier(int num_threads) : num_threads_(num_threads), missing_(num_threads) {}
  Barrier(const Barrier&) = delete;
  Barrier& operator=(const Barrier&) = delete;

  void wait() {
    if (num_threads_ == 1) return;
    const uint32_t round = round_.load(std::memory_order_relaxed);
    if (missing_.fetch_sub(1, std::memory_order_acq_rel) == 1) {
      missing_.store(num_threads_, std::memory_order_relaxed);
      round_.store(round + 1, std::memory_order_seq_cst);
      if (sleeping_.load(std::memory_order_seq_cst) > 0) wake_all(round_);
      return;
    }
    for (int spin = 0; spin < kSpins; ++spin) {
      if (round_.load(std::memory_order_acquire) != round) return;
#if defined(__x86_64__)
      __builtin_ia32_pause();
#endif
    }
    sleeping_.fetch_add(1, std::memory_order_seq_cst);
    while (round_.load(std::memory_order_seq_cst) == round) sleep_on(round_, round);
    sleeping_.fetch_sub(1, std::memory_order_relaxed);
  }

 private:
  // about 200 µs; the threads have equal work, so the others usually arrive within this time
  static constexpr int kSpins = 20000;
  const int num_threads_;
  alignas(64) std::atomic<int32_t> missing_;
  alignas(64) std::atomic<uint32_t> round_{0};
  std::atomic<int> sleeping_{0};
};

}  // namespace esp::device
