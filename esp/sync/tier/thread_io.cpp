// File I/O by a thread pool with pread and pwrite, for machines without io_uring.
#include <pthread.h>
#include <unistd.h>

#include <cerrno>
#include <condition_variable>
#include <deque>
#include <mutex>
#include <thread>
#include <vector>

#include <fmt/format.h>

#include "esp/sync/tier/file_io.h"

namespace esp::sync {
namespace {

constexpr size_t kCapacity = 64;

class ThreadIo final : public FileIo {
 public:
  ThreadIo(int file, int num_threads) : file_(file) {
    for (int i = 0; i < num_threads; ++i) {
      threads_.emplace_back([this] { serve(); });
      pthread_setname_np(threads_.back().native_handle(), fmt::format("esp-file-{}", i).c_str());
    }
  }

  ~ThreadIo() override {
    {
      std::lock_guard lock(mutex_);
      stopping_ = true;
    }
    request_queued_.notify_all();
    for (std::thread& thread : threads_) thread.join();
  }

  std::string_view name() const override { return "threads"; }
  size_t capacity() const override { return kCapacity; }

  void submit(std::span<const FileRequest> requests) override {
    {
      std::lock_guard lock(mutex_);
      requests_.insert(requests_.end(), requests.begin(), requests.end());
    }
    request_queued_.notify_all();
  }

  bool next(FileCompletion& completion, Deadline deadline) override {
    std::unique_lock lock(mutex_);
    if (!completion_queued_.wait_until(lock, deadline.when(), [this] { return !completions_.empty(); })) return false;
    completion = completions_.front();
    completions_.pop_front();
    return true;
  }

 private:
  void serve() {
    std::unique_lock lock(mutex_);
    for (;;) {
      request_queued_.wait(lock, [this] { return stopping_ || !requests_.empty(); });
      if (stopping_) return;
      const FileRequest request = requests_.front();
      requests_.pop_front();
      lock.unlock();
      const int64_t result = execute(request);
      lock.lock();
      completions_.push_back({request.id, result});
      completion_queued_.notify_one();
    }
  }

  int64_t execute(const FileRequest& request) const {
    for (;;) {
      const auto at = static_cast<off_t>(request.offset);
      const ssize_t moved = request.writes ? pwrite(file_, request.data, request.bytes, at)
                                           : pread(file_, request.data, request.bytes, at);
      if (moved >= 0) return moved;
      if (errno != EINTR) return -errno;
    }
  }

  const int file_;
  std::mutex mutex_;  // guards all members below, except threads_
  std::condition_variable request_queued_, completion_queued_;
  std::deque<FileRequest> requests_;
  std::deque<FileCompletion> completions_;
  bool stopping_ = false;
  std::vector<std::thread> threads_;
};

}  // namespace

std::unique_ptr<FileIo> make_thread_io(int file, int num_threads) {
  return std::make_unique<ThreadIo>(file, num_threads);
}

}  // namespace esp::sync
