// File I/O by io_uring: requests and completions are entries of two rings that are shared with the Linux kernel, so one
// thread can have many requests in flight.
#include <liburing.h>

#include <cerrno>
#include <memory>

#include <fmt/format.h>

#include "esp/base/check.h"
#include "esp/base/error.h"
#include "esp/sync/tier/file_io.h"

namespace esp::sync {
namespace {

class UringIo final : public FileIo {
 public:
  UringIo(int file, size_t depth, const io_uring& ring) : file_(file), depth_(depth), ring_(ring) {}
  ~UringIo() override { io_uring_queue_exit(&ring_); }

  std::string_view name() const override { return "uring"; }
  size_t capacity() const override { return depth_; }

  void submit(std::span<const FileRequest> requests) override {
    for (const FileRequest& request : requests) {
      io_uring_sqe* entry = io_uring_get_sqe(&ring_);
      ESP_CHECK(entry, "io_uring: got a request while {} are in flight, which is the capacity", depth_);
      const auto bytes = static_cast<unsigned>(request.bytes);
      if (request.writes)
        io_uring_prep_write(entry, file_, request.data, bytes, request.offset);
      else
        io_uring_prep_read(entry, file_, request.data, bytes, request.offset);
      io_uring_sqe_set_data64(entry, request.id);
    }
    for (size_t left = requests.size(); left > 0;) {
      const int taken = io_uring_submit(&ring_);
      if (taken == -EINTR) continue;
      if (taken < 0) throw IoError("io_uring: cannot submit requests: " + errno_text(-taken));
      left -= static_cast<size_t>(taken);
    }
  }

  bool next(FileCompletion& completion, Deadline deadline) override {
    for (;;) {
      io_uring_cqe* entry = nullptr;
      const auto left = std::chrono::duration_cast<std::chrono::nanoseconds>(deadline.left()).count();
      __kernel_timespec wait{.tv_sec = left / 1'000'000'000, .tv_nsec = left % 1'000'000'000};
      const int result = io_uring_wait_cqe_timeout(&ring_, &entry, &wait);
      if (result == -EINTR) continue;
      if (result == -ETIME) return false;
      if (result < 0) throw IoError("io_uring: cannot wait for a completion: " + errno_text(-result));
      completion = {io_uring_cqe_get_data64(entry), entry->res};
      io_uring_cqe_seen(&ring_, entry);
      return true;
    }
  }

 private:
  const int file_;
  const size_t depth_;
  io_uring ring_;
};

}  // namespace

// Returns null if setup fails: containers and hardened Linux kernels refuse the call; Linux before 5.6 lacks reads and
// writes.
std::unique_ptr<FileIo> make_uring_io(int file, size_t depth, std::string& why) {
  io_uring ring{};
  if (const int refused = io_uring_queue_init(static_cast<unsigned>(depth), &ring, 0); refused < 0) {
    why = "the Linux kernel refuses io_uring: " + errno_text(-refused);
    return nullptr;
  }
  const std::unique_ptr<io_uring_probe, decltype(&io_uring_free_probe)> known(io_uring_get_probe_ring(&ring),
                                                                              &io_uring_free_probe);
  if (!known || !io_uring_opcode_supported(known.get(), IORING_OP_READ) ||
      !io_uring_opcode_supported(known.get(), IORING_OP_WRITE)) {
    io_uring_queue_exit(&ring);
    why = "io_uring of this Linux kernel does not support read and write";
    return nullptr;
  }
  return std::make_unique<UringIo>(file, depth, ring);
}

}  // namespace esp::sync
