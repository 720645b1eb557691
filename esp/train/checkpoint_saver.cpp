#include "esp/train/checkpoint_saver.h"

#include <pthread.h>

#include <ctime>
#include <utility>

#include <fmt/format.h>

#include "esp/device/gpu.h"

namespace esp::train {
namespace {

constexpr size_t kAlignment = 64;

size_t aligned_bytes(const ckpt::TensorSlice& slice) {
  return (slice.values.bytes() + kAlignment - 1) / kAlignment * kAlignment;
}

int64_t thread_cpu_ns() {
  timespec used{};
  ::clock_gettime(CLOCK_THREAD_CPUTIME_ID, &used);
  return int64_t{used.tv_sec} * 1'000'000'000 + used.tv_nsec;
}

// True if a slice is in a file because it does not fit in memory. Such a snapshot cannot be copied to memory.
bool has_offloaded_slices(const ckpt::Snapshot& snapshot) {
  for (const auto* slices : {&snapshot.model, &snapshot.optimizer})
    for (const ckpt::TensorSlice& slice : *slices)
      if (slice.read) return true;
  return false;
}

// Makes GPU slices readable from the host, because files are written from host memory.
void pass_through_host(ckpt::Snapshot& snapshot) {
  for (auto* slices : {&snapshot.model, &snapshot.optimizer})
    for (ckpt::TensorSlice& slice : *slices) {
      if (slice.read || device::is_host_accessible(slice.values.data())) continue;
      const tensor::Tensor there = slice.values.reshape({slice.values.count()});
      slice.read = [there](int64_t first, const tensor::Tensor& to) {
        device::transfer(to.data(), there.slice(first, first + to.count()).data(), to.bytes());
      };
      slice.values = tensor::Tensor::borrow(nullptr, there.shape(), there.dtype());
    }
}

}  // namespace

CheckpointSaver::~CheckpointSaver() {
  cancelled_ = true;  // aborts a write in progress; an owner that needs the checkpoint calls `finish` first
  if (thread_.joinable()) thread_.join();
}

void CheckpointSaver::join() {
  if (thread_.joinable()) thread_.join();
  if (error_) std::rethrow_exception(std::exchange(error_, nullptr));
}

// The options of the next save. Each save gets a token that is used only once.
ckpt::SaveOptions CheckpointSaver::next_options() {
  ckpt::SaveOptions options = options_;
  if (options.world > 1) options.token = fmt::format("{}-{}", options_.token, ++num_saves_);
  options.stopping = &cancelled_;
  return options;
}

// Copies the snapshot into this object's host buffer.
ckpt::Snapshot CheckpointSaver::copy_to_host(ckpt::Snapshot snapshot) {
  size_t bytes = 0;
  for (const auto* slices : {&snapshot.model, &snapshot.optimizer})
    for (const ckpt::TensorSlice& slice : *slices) bytes += aligned_bytes(slice);
  if (bytes > copy_.bytes()) {
    device::AllocateOptions options;
    options.category = device::MemoryCategory::buffer;
    options.huge_pages = true;
    copy_ = {};  // frees the old buffer first, because the memory may be too small for both
    copy_ = device::HostBuffer(account_, bytes, options);
  }
  std::byte* at = copy_.data();
  for (auto* slices : {&snapshot.model, &snapshot.optimizer})
    for (ckpt::TensorSlice& slice : *slices) {
      const tensor::Tensor copy = tensor::Tensor::borrow(at, slice.values.shape(), slice.values.dtype());
      if (device::is_host_accessible(slice.values.data())) {
        device::copy_on_host(at, slice.values.data(), slice.values.bytes(), stream_);
      } else {
        device::transfer(at, slice.values.data(), slice.values.bytes());
      }
      at += aligned_bytes(slice);
      slice.values = copy;
    }
  return snapshot;
}

void CheckpointSaver::save(ckpt::Snapshot snapshot, bool in_background) {
  join();
  if (!in_background || has_offloaded_slices(snapshot)) {
    pass_through_host(snapshot);
    last_path_ = ckpt::save(dir_, snapshot, next_options());
    return;
  }
  snapshot = copy_to_host(std::move(snapshot));
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

std::string CheckpointSaver::finish() {
  join();
  return last_path_;
}

}  // namespace esp::train
