#include "esp/train/saver.h"

#include <pthread.h>

#include <utility>

#include <fmt/format.h>

#include "esp/device/gpu.h"

namespace esp::train {
namespace {

constexpr size_t kAlignment = 64;

size_t room_of(const ckpt::Piece& piece) {
  return (piece.values.bytes() + kAlignment - 1) / kAlignment * kAlignment;
}

// On a GPU, where files cannot be written from.
bool lies_elsewhere(const ckpt::Snapshot& snapshot) {
  for (const auto* pieces : {&snapshot.model, &snapshot.optimizer})
    for (const ckpt::Piece& piece : *pieces)
      if (!device::on_host(piece.values.data())) return true;
  return false;
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
      if (device::on_host(piece.values.data())) {
        device::copy_on_host(at, piece.values.data(), piece.values.bytes(), stream_);
      } else {
        device::transfer(at, piece.values.data(), piece.values.bytes());
      }
      const size_t room = room_of(piece);
      piece.values = tensor::Tensor::over(at, piece.values.shape(), piece.values.dtype());
      at += room;
    }
  return snapshot;
}

void Saver::save(ckpt::Snapshot snapshot) {
  join();
  if (in_background_ || lies_elsewhere(snapshot)) snapshot = copied(std::move(snapshot));
  if (!in_background_) {
    last_path_ = ckpt::save(dir_, snapshot, next_options());
    return;
  }
  thread_ = std::thread([this, options = next_options(), snapshot = std::move(snapshot)] {
    try {
      last_path_ = ckpt::save(dir_, snapshot, options);
    } catch (...) {
      error_ = std::current_exception();
    }
  });
  pthread_setname_np(thread_.native_handle(), "esp-checkpoint");
}

std::string Saver::finish() {
  join();
  return last_path_;
}

}  // namespace esp::train
