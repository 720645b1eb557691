// Asynchronous file I/O: io_uring, or a thread pool with pread and pwrite. Both accept requests up to their capacity
// and complete them in any order.
//
// One thread at a time. The file descriptor belongs to the caller and outlives the FileIo; so does the memory of a
// request until its completion.
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
  int64_t result = 0;  // bytes moved, possibly fewer than requested; or −errno
};

class FileIo {
 public:
  virtual ~FileIo() = default;
  virtual std::string_view name() const = 0;
  virtual size_t capacity() const = 0;  // maximum number of requests in flight
  virtual void submit(std::span<const FileRequest> requests) = 0;
  virtual bool next(FileCompletion& answer, Deadline deadline) = 0;  // false: none before the deadline
};

// Null when this machine or this build has no io_uring; `why` then says so.
std::unique_ptr<FileIo> make_uring_io(int file, size_t depth, std::string& why);
std::unique_ptr<FileIo> make_thread_io(int file, int num_threads);

}  // namespace esp::sync
