#include "esp/train/saver.h"

#include <pthread.h>

#include <memory>
#include <utility>

#include <fmt/format.h>

#include "esp/device/gpu.h"

namespace esp::train {
namespace {

// The snapshot over memory of its own; the buffers live as long as the result's second half.
struct HostCopy {
  ckpt::Snapshot snapshot;
  std::vector<device::HostBuffer> buffers;
};

std::unique_ptr<HostCopy> copy_to_host(ckpt::Snapshot snapshot, device::MemoryAccount& account) {
  auto copy = std::make_unique<HostCopy>();
  copy->snapshot = std::move(snapshot);
  for (auto* pieces : {&copy->snapshot.model, &copy->snapshot.optimizer})
    for (ckpt::Piece& piece : *pieces) {
      device::AllocateOptions options;
      options.category = device::MemoryCategory::buffer;
      device::HostBuffer& buffer = copy->buffers.emplace_back(account, piece.values.bytes(), options);
      device::transfer(buffer.data(), piece.values.data(), piece.values.bytes());
      piece.values = tensor::Tensor::over(buffer.data(), piece.values.shape(), piece.values.dtype());
    }
  return copy;
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

void Saver::save(ckpt::Snapshot snapshot) {
  join();
  if (!in_background_) {
    const auto copy = lies_elsewhere(snapshot) ? copy_to_host(std::move(snapshot), account_) : nullptr;
    last_path_ = ckpt::save(dir_, copy ? copy->snapshot : snapshot, next_options());
    return;
  }
  thread_ = std::thread([this, options = next_options(), copy = copy_to_host(std::move(snapshot), account_)] {
    try {
      last_path_ = ckpt::save(dir_, copy->snapshot, options);
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
