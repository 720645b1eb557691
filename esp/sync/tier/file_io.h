// Asynchronous file I/O, by io_uring or by a thread pool with pread and pwrite. Both accept requests up to their
// capacity and complete them in any order.
//
// Only one thread at a time may use a FileIo. The caller owns the file descriptor, which must outlive the FileIo. The
// memory of a request must exist until the request completes.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <string_view>

#include "esp/base/clock.h"

namespace esp::sync {

struct FileRequest {
  uint64_t id = 0;
  bool writes = false;
  uint64_t offset = 0;
  std::byte* data = nullptr;
  size_t bytes = 0;
};

struct FileCompletion {
  uint64_t id = 0;
  int64_t result = 0;  // bytes transferred, possibly fewer than requested; or −errno
};

class FileIo {
 public:
  virtual ~FileIo() = default;
  virtual std::string_view name() const = 0;
  virtual size_t capacity() const = 0;  // maximum number of requests in flight
  virtual void submit(std::span<const FileRequest> requests) = 0;
  // Waits for a completed request. Returns false if none completed before the deadline.
  virtual bool next(FileCompletion& completion, Deadline deadline) = 0;
};

// Returns null if this machine or this build has no io_uring; then `why` contains the reason.
std::unique_ptr<FileIo> make_uring_io(int file, size_t depth, std::string& why);
std::unique_ptr<FileIo> make_thread_io(int file, int num_threads);

}  // namespace esp::sync
