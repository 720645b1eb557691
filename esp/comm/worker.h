// The thread that runs started calls in order. Created by the first `start` and owned by its communicator. The
// destructor waits until all started calls are done.
#pragma once

#include <atomic>
#include <condition_variable>
#include <deque>
#include <functional>
#include <mutex>
#include <string>
#include <thread>
#include <utility>

#include "esp/base/work.h"

namespace esp::comm {

class Worker {
 public:
  explicit Worker(std::string name) : name_(std::move(name)) {}
  ~Worker();
  Worker(const Worker&) = delete;
  Worker& operator=(const Worker&) = delete;

  // Queues a job. If the job throws, the returned Work rethrows the exception.
  Work post(std::function<void()> job);
  // True if no job is queued or running; the effects of past jobs are then visible to the caller.
  bool idle() const { return num_pending_.load(std::memory_order_acquire) == 0; }

 private:
  void loop();

  const std::string name_;
  std::atomic<int> num_pending_{0};
  std::mutex mutex_;  // guards the members below
  std::condition_variable changed_;
  std::deque<std::pair<std::function<void()>, Work>> jobs_;
  bool stopping_ = false;
  std::thread thread_;
};

}  // namespace esp::comm
