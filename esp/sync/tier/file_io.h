// How bytes get between memory and an open file while the caller does something else: io_uring, or a few threads with
// pread and pwrite. Both take requests, in any number up to their capacity, and answer them in any order.
//
// One thread at a time calls. The file descriptor is the caller's and outlives the FileIo; so does the memory of a
// request until it is answered.
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

struct FileAnswer {
  uint64_t id = 0;
  int64_t result = 0;  // bytes moved, perhaps fewer than asked; or −errno
};

class FileIo {
 public:
  virtual ~FileIo() = default;
  virtual std::string_view name() const = 0;
  virtual size_t capacity() const = 0;  // requests that may be under way at once
  virtual void submit(std::span<const FileRequest> requests) = 0;
  virtual bool next(FileAnswer& answer, Deadline deadline) = 0;  // false: none came in time
};

// Null when this machine or this build has no io_uring to offer; `why` then says so.
std::unique_ptr<FileIo> make_uring_io(int file, size_t depth, std::string& why);
std::unique_ptr<FileIo> make_thread_io(int file, int num_threads);

}  // namespace esp::sync
