// The compute threads of one rank. The caller of `run` is worker 0, so a pool with one worker owns no thread.
//
// Work is split statically, so results do not depend on timing. Idle workers spin for a bounded time, then sleep on a
// futex. Only one `run` may be active, and a task may not call `run` again.
#pragma once

#include <algorithm>
#include <atomic>
#include <cstdint>
#include <memory>
#include <thread>
#include <vector>

namespace esp::device {

class ThreadPool {
 public:
  explicit ThreadPool(int num_threads);
  ~ThreadPool();
  ThreadPool(const ThreadPool&) = delete;
  ThreadPool& operator=(const ThreadPool&) = delete;

  int num_threads() const { return num_threads_; }

  // Calls task(worker) for every worker in [0, num_threads) and returns when all calls have returned. A task must not
  // throw.
  template <typename Task>
  void run(Task&& task) {
    if (num_threads_ == 1) {
      task(0);
      return;
    }
    using Plain = std::remove_reference_t<Task>;
    run_on_all([](void* it, int worker) { (*static_cast<Plain*>(it))(worker); },
               const_cast<void*>(static_cast<const void*>(&task)));
  }

 private:
  using Call = void (*)(void* task, int worker);
  void run_on_all(Call call, void* task);
  void serve(int worker);

  const int num_threads_;
  Call call_ = nullptr;
  void* task_ = nullptr;
  alignas(64) std::atomic<uint32_t> round_{0};      // number of the current task; incrementing it starts the next task
  alignas(64) std::atomic<uint32_t> remaining_{0};  // workers that have not finished the task yet
  std::atomic<int> sleeping_{0};                    // workers asleep or about to sleep
  std::atomic<bool> caller_sleeps_{false};          // the caller of run() is asleep or about to sleep
  std::atomic<bool> stopping_{false};
  std::vector<std::thread> workers_;
};

}  // namespace esp::device
