// Work: handle of an asynchronous operation that runs on another thread. Copies share one state. If the operation
// throws, the Work is complete and `wait` rethrows the exception. Any thread may wait. One thread completes the Work,
// once.
#pragma once

#include <condition_variable>
#include <exception>
#include <memory>
#include <mutex>

#include "esp/base/clock.h"

namespace esp {

class Work {
 public:
  Work() = default;  // an empty Work is done and has no error
  static Work pending();
  static Work failed(std::exception_ptr error);

  bool done() const;
  // Blocks until done. Rethrows the operation's exception, or throws CommError(timeout) at the deadline.
  void wait(Deadline deadline) const;
  std::exception_ptr error() const;

  // For the thread that runs the operation.
  void complete() const;
  void fail(std::exception_ptr error) const;

 private:
  struct State {
    mutable std::mutex mutex;  // guards `done` and `error`
    std::condition_variable changed;
    bool done = false;
    std::exception_ptr error;
  };
  std::shared_ptr<State> state_;
};

}  // namespace esp
