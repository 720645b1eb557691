// One thread that does what it is handed, in order, while the one who hands goes on.
//
// The first error stops the lane: what was handed after it is dropped, and `wait` throws it, once. One thread hands and
// waits; destroying the lane finishes the task it is in.
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

class Lane {
 public:
  explicit Lane(std::string name);  // of the thread: at most 15 characters
  ~Lane();
  Lane(const Lane&) = delete;
  Lane& operator=(const Lane&) = delete;

  void post(std::function<void()> task);
  void wait(Deadline deadline);  // until all is done; IoError when it is not in time

 private:
  void serve();

  const std::string name_;
  std::mutex mutex_;  // guards what is below, but for thread_
  std::condition_variable posted_, finished_;
  std::deque<std::function<void()>> tasks_;
  bool busy_ = false, stopping_ = false;
  std::exception_ptr error_;
  std::thread thread_;
};

}  // namespace esp::sync
