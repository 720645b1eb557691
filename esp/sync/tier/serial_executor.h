// Serial executor: one thread that runs submitted tasks in order.
//
// The first error stops it: later tasks are dropped, and `wait` throws the error once. One thread submits and waits;
// destruction finishes the current task.
#pragma once

#include <condition_variable>
#include <deque>
#include <exception>
#include <functional>
#include <mutex>
#include <string>
#include <thread>

#include "esp/base/clock.h"

namespace esp::sync {

class SerialExecutor {
 public:
  explicit SerialExecutor(std::string name);  // of the thread: at most 15 characters
  ~SerialExecutor();
  SerialExecutor(const SerialExecutor&) = delete;
  SerialExecutor& operator=(const SerialExecutor&) = delete;

  void post(std::function<void()> task);
  void wait(Deadline deadline);  // until all tasks are done; IoError on timeout

 private:
  void serve();

  const std::string name_;
  std::mutex mutex_;  // guards all below, except thread_
  std::condition_variable posted_, finished_;
  std::deque<std::function<void()>> tasks_;
  bool busy_ = false, stopping_ = false;
  std::exception_ptr error_;
  std::thread thread_;
};

}  // namespace esp::sync
