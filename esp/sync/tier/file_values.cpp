// Weights in a file: each unit's shard begins at a block boundary. One thread serves the file in the order of requests,
// so reading ahead does not block the caller. Shards pass through reused buffers in host memory.
#include <atomic>
#include <cstring>
#include <mutex>
#include <utility>

#include <fmt/format.h>

#include "esp/base/error.h"
#include "esp/base/work.h"
#include "esp/device/gpu.h"
#include "esp/sync/tier/block_store.h"
#include "esp/sync/tier/serial_executor.h"
#include "esp/sync/tier/value_tier.h"

namespace esp::sync {
namespace {

// maximum number of shards that wait to be written to the file, not counting the one that is being assembled
constexpr int kMaxPendingWrites = 2;
constexpr auto kLongestWait = std::chrono::minutes(10);

size_t whole_blocks(size_t bytes) {
  return (bytes + kBlockBytes - 1) / kBlockBytes * kBlockBytes;
}

class FileValues final : public ValueTier {
 public:
  FileValues(const ValueShape& shape, const FileOptions& options)
      : shape_(shape), account_(shape.host->account()), reads_(shape.counts.size()), executor_("esp-values") {
    uint64_t total = 0;
    for (const int64_t count : shape.counts) {
      offsets_.push_back(total);
      total += whole_blocks(bytes_of(count));
      largest_ = std::max(largest_, whole_blocks(bytes_of(count)));
    }
    store_ = make_store(options, std::max<uint64_t>(total, kBlockBytes));
  }

  tensor::Tensor shard(size_t unit) const override {
    return tensor::Tensor::borrow(nullptr, {shape_.counts[unit]}, shape_.type);
  }
  void prefetch(size_t unit) override;
  const std::byte* fetch(size_t unit) override;
  void release(size_t unit) override;
  void write(size_t unit, int64_t first, std::span<const std::byte> from) override;
  void flush() override;
  FileTraffic traffic() const override {
    std::lock_guard lock(mutex_);
    return traffic_;
  }

 private:
  // A block-aligned range: `memory` is unaligned, `first` is its first aligned byte.
  struct Buffer {
    tensor::Tensor memory;
    std::byte* first = nullptr;
  };
  struct PendingRead {
    Buffer* buffer = nullptr;  // null if no read was requested
    Work work;
  };
  size_t bytes_of(int64_t count) const { return static_cast<size_t>(count) * size_of(shape_.type); }
  size_t bytes(size_t unit) const { return bytes_of(shape_.counts[unit]); }
  std::unique_ptr<BlockStore> make_store(const FileOptions& options, uint64_t bytes) const;
  Buffer* take_buffer();
  void return_buffer(Buffer* buffer);
  void read_into(size_t unit, Buffer* buffer, const Work& work);

  const ValueShape shape_;
  device::MemoryAccount& account_;
  std::vector<uint64_t> offsets_;
  size_t largest_ = 0;
  std::unique_ptr<BlockStore> store_;  // used by the executor's thread only
  mutable std::mutex mutex_;           // guards all members below, except the executor
  std::deque<Buffer> buffers_;
  std::vector<Buffer*> free_;
  std::vector<PendingRead> reads_;  // [unit]: the read of its shard, if requested
  FileTraffic traffic_;
  Buffer* filling_ = nullptr;  // filling_: the shard that the writer assembles; filled_: its bytes so far
  size_t filled_ = 0;
  std::atomic<int> num_writing_{0};
  SerialExecutor executor_;  // last member: its thread ends before the objects that it uses
};

std::unique_ptr<BlockStore> FileValues::make_store(const FileOptions& options, uint64_t bytes) const {
  try {
    return std::make_unique<BlockStore>(account_, options, "values", bytes);
  } catch (const IoError& error) {
    throw IoError(
        fmt::format("{}. Weights of {} bytes. Use more ranks, a larger disk or sync.offload_params = \"host\".",
                    error.what(), bytes));
  }
}

FileValues::Buffer* FileValues::take_buffer() {
  if (!free_.empty()) {
    Buffer* const buffer = free_.back();
    free_.pop_back();
    return buffer;
  }
  Buffer& made = buffers_.emplace_back();
  made.memory = tensor::Tensor(*shape_.host, {static_cast<int64_t>(largest_ + kBlockBytes)}, DType::u8,
                               device::MemoryCategory::buffer);
  const auto at = reinterpret_cast<uintptr_t>(made.memory.data());
  made.first = made.memory.as<std::byte>() + (whole_blocks(at) - at);
  return &made;
}

void FileValues::return_buffer(Buffer* buffer) {
  std::lock_guard lock(mutex_);
  free_.push_back(buffer);
}

void FileValues::prefetch(size_t unit) {
  if (bytes(unit) == 0) return;
  std::lock_guard lock(mutex_);
  PendingRead& pending = reads_[unit];
  if (pending.buffer) return;
  pending = {take_buffer(), Work::pending()};
  executor_.post([this, unit, buffer = pending.buffer, work = pending.work] { read_into(unit, buffer, work); });
}

// Runs on the executor's thread. An error is passed to the caller that waits for this shard; the executor continues.
void FileValues::read_into(size_t unit, Buffer* buffer, const Work& work) {
  try {
    const size_t blocks = whole_blocks(bytes(unit));
    store_->wait(store_->read(offsets_[unit], {buffer->first, blocks}));
    {
      std::lock_guard lock(mutex_);
      traffic_.read += bytes(unit);
      traffic_.padding_read += blocks - bytes(unit);
    }
    work.complete();
  } catch (...) {
    work.fail(std::current_exception());
  }
}

const std::byte* FileValues::fetch(size_t unit) {
  if (bytes(unit) == 0) return nullptr;
  prefetch(unit);
  PendingRead pending;
  {
    std::lock_guard lock(mutex_);
    pending = reads_[unit];
  }
  pending.work.wait(Deadline::after(kLongestWait));
  return pending.buffer->first;
}

void FileValues::release(size_t unit) {
  std::lock_guard lock(mutex_);
  if (Buffer* const buffer = std::exchange(reads_[unit], {}).buffer) free_.push_back(buffer);
}

void FileValues::write(size_t unit, int64_t first, std::span<const std::byte> from) {
  if (first == 0) {
    if (num_writing_ >= kMaxPendingWrites)
      executor_.wait(Deadline::after(kLongestWait));  // waits, because the disk is slower than the writer
    std::lock_guard lock(mutex_);
    if (!filling_) filling_ = take_buffer();
    filled_ = 0;
  }
  ESP_CHECK(bytes_of(first) == filled_ && filled_ + from.size() <= bytes(unit),
            "write to unit {}: got {} bytes from element {}; expected elements in order and within the shard", unit,
            from.size(), first);
  if (from.empty()) return;
  device::transfer(filling_->first + filled_, from.data(), from.size());
  filled_ += from.size();
  if (filled_ < bytes(unit)) return;
  const size_t blocks = whole_blocks(filled_);
  std::memset(filling_->first + filled_, 0, blocks - filled_);
  ++num_writing_;
  executor_.post([this, unit, blocks, buffer = std::exchange(filling_, nullptr)] {
    store_->wait(store_->write(offsets_[unit], {buffer->first, blocks}));
    --num_writing_;
    return_buffer(buffer);
    std::lock_guard lock(mutex_);
    traffic_.written += bytes(unit);
    traffic_.padding_written += blocks - bytes(unit);
  });
}

void FileValues::flush() {
  executor_.wait(Deadline::after(kLongestWait));
  std::lock_guard lock(mutex_);
  for (PendingRead& pending : reads_)
    if (Buffer* const buffer = std::exchange(pending, {}).buffer) free_.push_back(buffer);
}

}  // namespace

std::unique_ptr<ValueTier> make_file_values(const ValueShape& shape, const FileOptions& options) {
  return std::make_unique<FileValues>(shape, options);
}

}  // namespace esp::sync
