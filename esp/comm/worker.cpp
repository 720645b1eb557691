#include "esp/comm/worker.h"

#include <pthread.h>

#include <exception>
#include <tuple>
#include <utility>

namespace esp::comm {

Worker::~Worker() {
  {
    std::lock_guard lock(mutex_);
    stopping_ = true;
  }
  changed_.notify_one();
  if (thread_.joinable()) thread_.join();
}

Work Worker::post(std::function<void()> job) {
  Work work = Work::pending();
  {
    std::lock_guard lock(mutex_);
    num_pending_.fetch_add(1, std::memory_order_relaxed);
    jobs_.emplace_back(std::move(job), work);
    if (!thread_.joinable()) {
      thread_ = std::thread([this] { loop(); });
      // Linux limits thread names to 15 characters
      pthread_setname_np(thread_.native_handle(), name_.substr(0, 15).c_str());
    }
  }
  changed_.notify_one();
  return work;
}

void Worker::loop() {
  for (;;) {
    std::function<void()> job;
    Work work;
    {
      std::unique_lock lock(mutex_);
      changed_.wait(lock, [&] { return stopping_ || !jobs_.empty(); });
      if (jobs_.empty()) return;
      std::tie(job, work) = std::move(jobs_.front());
      jobs_.pop_front();
    }
    std::exception_ptr error;
    try {
      job();
    } catch (...) {
      error = std::current_exception();
    }
    job = nullptr;
    // The worker must be idle before the Work is done: a caller that waited for the Work may run its next call on its
    // own thread.
    num_pending_.fetch_sub(1, std::memory_order_release);
    work.fail(error);
  }
}

}  // namespace esp::comm
