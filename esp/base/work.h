// Work: the handle of something under way on another thread. Copies share one state. An error there completes the Work
// and `wait` throws it here. Any thread may wait; one thread completes, once.
#pragma once

#include <condition_variable>
#include <exception>
#include <memory>
#include <mutex>

#include "esp/base/clock.h"

namespace esp {

class Work {
 public:
  Work() = default;  // empty: done, no error
  static Work pending();
  static Work failed(std::exception_ptr error);

  bool done() const;
  // Blocks until done. Throws what the work threw, or CommError(timeout) once the deadline has passed.
  void wait(Deadline deadline) const;
  std::exception_ptr error() const;

  // For the side that does the work.
  void complete() const;
  void fail(std::exception_ptr error) const;

 private:
  struct State {
    mutable std::mutex mutex;  // guards done and error
    std::condition_variable changed;
    bool done = false;
    std::exception_ptr error;
  };
  std::shared_ptr<State> state_;
};

}  // namespace esp
