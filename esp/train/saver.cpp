#include "esp/train/saver.h"

#include <pthread.h>

#include <ctime>
#include <utility>

#include <fmt/format.h>

#include "esp/device/gpu.h"

namespace esp::train {
namespace {

constexpr size_t kAlignment = 64;

size_t room_of(const ckpt::Piece& piece) {
  return (piece.values.bytes() + kAlignment - 1) / kAlignment * kAlignment;
}

int64_t thread_cpu_ns() {
  timespec used{};
  ::clock_gettime(CLOCK_THREAD_CPUTIME_ID, &used);
  return int64_t{used.tv_sec} * 1'000'000'000 + used.tv_nsec;
}

// There is no memory for a copy of it.
bool beyond_memory(const ckpt::Snapshot& snapshot) {
  for (const auto* pieces : {&snapshot.model, &snapshot.optimizer})
    for (const ckpt::Piece& piece : *pieces)
      if (piece.read) return true;
  return false;
}

// Files cannot be written from a GPU: its values pass through the host's memory.
void pass_through_host(ckpt::Snapshot& snapshot) {
  for (auto* pieces : {&snapshot.model, &snapshot.optimizer})
    for (ckpt::Piece& piece : *pieces) {
      if (piece.read || device::on_host(piece.values.data())) continue;
      const tensor::Tensor there = piece.values.reshape({piece.values.count()});
      piece.read = [there](int64_t first, const tensor::Tensor& to) {
        device::transfer(to.data(), there.slice(first, first + to.count()).data(), to.bytes());
      };
      piece.values = tensor::Tensor::borrow(nullptr, there.shape(), there.dtype());
    }
}

}  // namespace

Saver::~Saver() {
  leaving_ = true;  // whoever wanted the last one has called finish
  if (thread_.joinable()) thread_.join();
}

void Saver::join() {
  if (thread_.joinable()) thread_.join();
  if (error_) std::rethrow_exception(std::exchange(error_, nullptr));
}

// A token names one attempt, and a saver makes many.
ckpt::SaveOptions Saver::next_options() {
  ckpt::SaveOptions options = options_;
  if (options.world > 1) options.token = fmt::format("{}-{}", options_.token, ++num_saves_);
  options.leaving = &leaving_;
  return options;
}

// The snapshot over the saver's own memory.
ckpt::Snapshot Saver::copied(ckpt::Snapshot snapshot) {
  size_t bytes = 0;
  for (const auto* pieces : {&snapshot.model, &snapshot.optimizer})
    for (const ckpt::Piece& piece : *pieces) bytes += room_of(piece);
  if (bytes > copy_.bytes()) {
    device::AllocateOptions options;
    options.category = device::MemoryCategory::buffer;
    options.huge_pages = true;
    copy_ = {};  // first: both at once might not fit
    copy_ = device::HostBuffer(account_, bytes, options);
  }
  std::byte* at = copy_.data();
  for (auto* pieces : {&snapshot.model, &snapshot.optimizer})
    for (ckpt::Piece& piece : *pieces) {
      const tensor::Tensor copy = tensor::Tensor::borrow(at, piece.values.shape(), piece.values.dtype());
      if (device::on_host(piece.values.data())) {
        device::copy_on_host(at, piece.values.data(), piece.values.bytes(), stream_);
      } else {
        device::transfer(at, piece.values.data(), piece.values.bytes());
      }
      at += room_of(piece);
      piece.values = copy;
    }
  return snapshot;
}

void Saver::save(ckpt::Snapshot snapshot, bool in_background) {
  join();
  if (!in_background || beyond_memory(snapshot)) {
    pass_through_host(snapshot);
    last_path_ = ckpt::save(dir_, snapshot, next_options());
    return;
  }
  snapshot = copied(std::move(snapshot));
  writing_ = true;
  thread_ = std::thread([this, options = next_options(), snapshot = std::move(snapshot)] {
    try {
      last_path_ = ckpt::save(dir_, snapshot, options);
    } catch (...) {
      error_ = std::current_exception();
    }
    writer_ns_ += thread_cpu_ns();
    writing_ = false;
  });
  pthread_setname_np(thread_.native_handle(), "esp-checkpoint");
}

std::string Saver::finish() {
  join();
  return last_path_;
}

}  // namespace esp::train
