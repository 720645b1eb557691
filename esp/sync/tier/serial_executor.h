// Serial executor: one thread that runs the submitted tasks in order.
//
// After an error later tasks are dropped; `wait` throws the error once. One thread submits and waits. The destructor
// finishes the current task.
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
  explicit SerialExecutor(std::string name);  // `name` is the thread's name: at most 15 characters
  ~SerialExecutor();
  SerialExecutor(const SerialExecutor&) = delete;
  SerialExecutor& operator=(const SerialExecutor&) = delete;

  void post(std::function<void()> task);
  void wait(Deadline deadline);  // waits until all tasks are done; throws IoError on timeout

 private:
  void serve();

  const std::string name_;
  std::mutex mutex_;  // guards all members below, except thread_
  std::condition_variable queued_, finished_;
  std::deque<std::function<void()>> tasks_;
  bool busy_ = false, stopping_ = false;
  std::exception_ptr error_;
  std::thread thread_;
};

}  // namespace esp::sync
