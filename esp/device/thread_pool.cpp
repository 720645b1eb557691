#include "esp/device/thread_pool.h"

#include <pthread.h>

#include <string>
#include <system_error>

#include <fmt/format.h>

#include "esp/base/check.h"
#include "esp/base/error.h"
#include "esp/base/futex.h"

namespace esp::device {
namespace {

// About 20 µs on current machines: longer than the gap between two kernels, shorter than a time slice.
constexpr int kSpins = 4000;

void relax() {
#if defined(__x86_64__)
  __builtin_ia32_pause();
#endif
}

}  // namespace

ThreadPool::ThreadPool(int num_threads) : num_threads_(num_threads) {
  ESP_CHECK(num_threads >= 1, "thread pool: got {} threads; expected at least 1", num_threads);
  for (int worker = 1; worker < num_threads; ++worker) {
    try {
      workers_.emplace_back([this, worker] { serve(worker); });
    } catch (const std::system_error& error) {
      stopping_ = true;
      round_.fetch_add(1);
      wake_all(round_);
      for (auto& thread : workers_) thread.join();
      throw UsageError(
          fmt::format("threads: got {}; only {} could be started ({}). Use fewer threads, or raise the process limit",
                      num_threads, worker, error.code().message()));
    }
    pthread_setname_np(workers_.back().native_handle(), ("esp-compute-" + std::to_string(worker)).c_str());
  }
}

ThreadPool::~ThreadPool() {
  stopping_ = true;
  round_.fetch_add(1);
  wake_all(round_);
  for (auto& thread : workers_) thread.join();
}

// No wake-up can be lost. A worker first increments `sleeping_`, then checks the round again (inside the futex system
// call). The caller first publishes the new round, then checks `sleeping_`. All four operations are sequentially
// consistent, so at least one side sees the other's write.
void ThreadPool::run_on_all(Call call, void* task) {
  call_ = call;
  task_ = task;
  remaining_.store(static_cast<uint32_t>(num_threads_ - 1), std::memory_order_relaxed);
  round_.fetch_add(1, std::memory_order_seq_cst);
  if (sleeping_.load(std::memory_order_seq_cst) > 0) wake_all(round_);
  call(task, 0);
  for (int spin = 0; remaining_.load(std::memory_order_acquire) != 0; ++spin) {
    if (spin < kSpins) {
      relax();
      continue;
    }
    caller_sleeps_.store(true, std::memory_order_seq_cst);
    if (const uint32_t left = remaining_.load(std::memory_order_seq_cst); left != 0) sleep_on(remaining_, left);
    caller_sleeps_.store(false, std::memory_order_relaxed);
  }
}

void ThreadPool::serve(int worker) {
  uint32_t seen = 0;
  for (;;) {
    for (int spin = 0; round_.load(std::memory_order_acquire) == seen; ++spin) {
      if (spin < kSpins) {
        relax();
        continue;
      }
      sleeping_.fetch_add(1, std::memory_order_seq_cst);
      sleep_on(round_, seen);
      sleeping_.fetch_sub(1, std::memory_order_relaxed);
    }
    ++seen;
    if (stopping_) return;
    call_(task_, worker);
    if (remaining_.fetch_sub(1, std::memory_order_seq_cst) == 1 && caller_sleeps_.load(std::memory_order_seq_cst))
      wake_all(remaining_);
  }
}

}  // namespace esp::device
