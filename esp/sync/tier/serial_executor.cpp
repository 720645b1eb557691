#include "esp/sync/tier/serial_executor.h"

#include <pthread.h>

#include <utility>

#include <fmt/format.h>

#include "esp/base/error.h"

namespace esp::sync {

SerialExecutor::SerialExecutor(std::string name) : name_(std::move(name)), thread_([this] { serve(); }) {
  pthread_setname_np(thread_.native_handle(), name_.c_str());
}

SerialExecutor::~SerialExecutor() {
  {
    std::lock_guard lock(mutex_);
    stopping_ = true;
    tasks_.clear();
  }
  queued_.notify_one();
  thread_.join();
}

void SerialExecutor::post(std::function<void()> task) {
  {
    std::lock_guard lock(mutex_);
    if (error_) return;
    tasks_.push_back(std::move(task));
  }
  queued_.notify_one();
}

void SerialExecutor::wait(Deadline deadline) {
  std::unique_lock lock(mutex_);
  if (!finished_.wait_until(lock, deadline.when(), [this] { return tasks_.empty() && !busy_; }))
    throw IoError(
        fmt::format("thread {}: timeout while waiting for its tasks; {} tasks are not done", name_, tasks_.size() + 1));
  if (error_) std::rethrow_exception(std::exchange(error_, nullptr));
}

void SerialExecutor::serve() {
  std::unique_lock lock(mutex_);
  for (;;) {
    queued_.wait(lock, [this] { return stopping_ || !tasks_.empty(); });
    if (stopping_) return;
    const std::function<void()> task = std::move(tasks_.front());
    tasks_.pop_front();
    busy_ = true;
    lock.unlock();
    std::exception_ptr error;
    try {
      task();
    } catch (...) {
      error = std::current_exception();
    }
    lock.lock();
    busy_ = false;
    if (error) {
      error_ = error;
      tasks_.clear();
    }
    if (tasks_.empty()) finished_.notify_all();
  }
}

}  // namespace esp::sync
