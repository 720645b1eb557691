#include "esp/device/thread_pool.h"

#include <pthread.h>

#include <string>

#include "esp/base/check.h"

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
  ESP_CHECK(num_threads >= 1, "{} threads", num_threads);
  for (int worker = 1; worker < num_threads; ++worker) {
    workers_.emplace_back([this, worker] { serve(worker); });
    pthread_setname_np(workers_.back().native_handle(), ("esp-compute-" + std::to_string(worker)).c_str());
  }
}

ThreadPool::~ThreadPool() {
  stopping_ = true;
  round_.fetch_add(1);
  round_.notify_all();
  for (auto& thread : workers_) thread.join();
}

void ThreadPool::run_on_all(Call call, void* task) {
  call_ = call;
  task_ = task;
  remaining_.store(num_threads_ - 1, std::memory_order_relaxed);
  round_.fetch_add(1, std::memory_order_release);
  round_.notify_all();
  call(task, 0);
  for (int spin = 0; remaining_.load(std::memory_order_acquire) != 0; ++spin) {
    if (spin < kSpins) {
      relax();
    } else if (int32_t left = remaining_.load(std::memory_order_acquire); left != 0) {
      remaining_.wait(left, std::memory_order_acquire);
    }
  }
}

void ThreadPool::serve(int worker) {
  uint32_t seen = 0;
  for (;;) {
    for (int spin = 0; round_.load(std::memory_order_acquire) == seen; ++spin) {
      if (spin < kSpins) {
        relax();
      } else {
        round_.wait(seen, std::memory_order_acquire);
      }
    }
    ++seen;
    if (stopping_) return;
    call_(task_, worker);
    if (remaining_.fetch_sub(1, std::memory_order_acq_rel) == 1) remaining_.notify_one();
  }
}

}  // namespace esp::device
