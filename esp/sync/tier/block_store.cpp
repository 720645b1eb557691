#include "esp/sync/tier/block_store.h"

#include <xxhash.h>

#include <array>
#include <cerrno>
#include <utility>

#include <fmt/format.h>

#include "esp/base/check.h"
#include "esp/base/error.h"
#include "esp/base/table.h"

namespace esp::sync {
namespace {

// large enough for the full rate of a disk, small enough to run several in parallel
constexpr size_t kChunkBytes = size_t{4} << 20;
constexpr size_t kUringDepth = 256;

struct IoRow {
  std::string_view name;
  bool uring, threads;  // I/O backends that an option value allows; io_uring is tried first
};
constexpr IoRow kIo[] = {{"auto", true, true}, {"uring", true, false}, {"threads", false, true}};

std::unique_ptr<FileIo> make_io(const FileOptions& options, int file, std::vector<std::string>& notes) {
  const IoRow& row = find_row("file tier I/O backend", kIo, options.io);
  if (row.uring) {
    std::string why;
    if (auto io = make_uring_io(file, kUringDepth, why)) return io;
    if (!row.threads) throw IoError(fmt::format("file tier: io = {}: {}. Use io = threads or auto.", options.io, why));
    notes.push_back(fmt::format("{}; the file tier uses {} threads instead", why, options.num_threads));
  }
  if (options.num_threads < 1)
    throw UsageError(fmt::format("file tier threads: got {}; expected at least 1.", options.num_threads));
  return make_thread_io(file, static_cast<int>(options.num_threads));
}

uint64_t checksum(const std::byte* block) {
  return XXH3_64bits(block, kBlockBytes);
}

bool is_aligned(uint64_t x) {
  return x % kBlockBytes == 0;
}

}  // namespace

BlockStore::MemoryCharge::MemoryCharge(device::MemoryAccount& of, uint64_t size) : account(of), bytes(size) {
  account.add(device::MemoryCategory::optimizer, device::MemoryTier::file, bytes);
}
BlockStore::MemoryCharge::~MemoryCharge() {
  account.remove(device::MemoryCategory::optimizer, device::MemoryTier::file, bytes);
}

BlockStore::BlockStore(device::MemoryAccount& account, const FileOptions& options, const std::string& name,
                       uint64_t bytes)
    : options_(options), file_(options, name, bytes), charge_(account, file_.bytes()), notes_(file_.notes()) {
  static constexpr std::array<std::byte, kBlockBytes> kZeros{};
  checksums_.assign(file_.bytes() / kBlockBytes, checksum(kZeros.data()));
  io_ = make_io(options, file_.descriptor(), notes_);
  chunks_.resize(io_->capacity());
  for (size_t id = chunks_.size(); id-- > 0;) free_chunks_.push_back(id);
}

// After destruction the caller may reuse the memory of transfers, so the destructor waits for all of them.
BlockStore::~BlockStore() {
  waiting_.clear();
  try {
    const Deadline deadline = Deadline::after_ms(options_.timeout_s * 1000);
    while (free_chunks_.size() < chunks_.size() && take_completion(deadline)) {
    }
  } catch (const Error&) {
    // A failed write does not matter here: the file is deleted with the store.
  }
}

BlockStore::Ticket BlockStore::read(uint64_t offset, std::span<std::byte> into) {
  return begin(false, offset, into);
}

BlockStore::Ticket BlockStore::write(uint64_t offset, std::span<const std::byte> from) {
  // Reads and writes use the same request type, which has a mutable pointer; a write only reads this memory.
  const Ticket ticket = begin(true, offset, {const_cast<std::byte*>(from.data()), from.size()});
  for (size_t at = 0; at < from.size(); at += kBlockBytes)
    checksums_[(offset + at) / kBlockBytes] = checksum(from.data() + at);
  return ticket;
}

BlockStore::Ticket BlockStore::begin(bool writes, uint64_t offset, std::span<std::byte> data) {
  ESP_CHECK(is_aligned(offset) && is_aligned(data.size()) && is_aligned(reinterpret_cast<uintptr_t>(data.data())),
            "{}: unaligned transfer: got {} bytes at offset {}; expected multiples of {}", file_.path(), data.size(),
            offset, kBlockBytes);
  ESP_CHECK(offset + data.size() <= file_.bytes(),
            "{}: transfer past the end: got {} bytes at offset {}; the file has {} bytes", file_.path(), data.size(),
            offset, file_.bytes());
  if (free_tickets_.empty()) {
    free_tickets_.push_back(transfers_.size());
    transfers_.emplace_back();
  }
  const Ticket ticket = free_tickets_.back();
  free_tickets_.pop_back();
  transfers_[ticket] = {writes, offset, data, 0, 0, {}};
  for (size_t at = 0; at < data.size(); at += kChunkBytes) {
    waiting_.push_back({ticket, offset + at, data.data() + at, std::min(kChunkBytes, data.size() - at), 0});
    ++transfers_[ticket].chunks_left;
  }
  submit_waiting();
  return ticket;
}

void BlockStore::submit_waiting() {
  batch_.clear();
  while (!waiting_.empty() && !free_chunks_.empty()) {
    const size_t id = free_chunks_.back();
    free_chunks_.pop_back();
    const FileChunk& chunk = chunks_[id] = waiting_.front();
    waiting_.pop_front();
    batch_.push_back({id, transfers_[chunk.ticket].writes, chunk.offset + chunk.transferred,
                      chunk.data + chunk.transferred, chunk.bytes - chunk.transferred});
  }
  if (!batch_.empty()) io_->submit(batch_);
}

bool BlockStore::take_completion(Deadline deadline) {
  FileCompletion completion;
  if (!io_->next(completion, deadline)) return false;
  FileChunk chunk = chunks_[completion.id];
  free_chunks_.push_back(completion.id);
  FileTransfer& transfer = transfers_[chunk.ticket];
  if (completion.result <= 0) {  // no transfer goes past the end of the file, so 0 bytes are an error too
    if (!transfer.error) transfer.error = completion.result ? static_cast<int>(-completion.result) : EIO;
    --transfer.chunks_left;
    return true;
  }
  const auto transferred = static_cast<size_t>(completion.result);
  (transfer.writes ? bytes_written_ : bytes_read_) += transferred;
  chunk.transferred += transferred;
  if (chunk.transferred < chunk.bytes) {
    waiting_.push_front(chunk);
    return true;
  }
  if (!transfer.writes) verify(chunk, transfer);
  --transfer.chunks_left;
  return true;
}

void BlockStore::wait(Ticket ticket) {
  const Deadline deadline = Deadline::after_ms(options_.timeout_s * 1000);
  while (transfers_[ticket].chunks_left > 0) {
    if (!take_completion(deadline))
      throw IoError(fmt::format("{}: disk timeout after {} s: transfer of {} bytes at offset {}", file_.path(),
                                options_.timeout_s, transfers_[ticket].data.size(), transfers_[ticket].offset));
    submit_waiting();
  }
  const FileTransfer done = std::exchange(transfers_[ticket], {});
  free_tickets_.push_back(ticket);
  if (done.error == ENOSPC || done.error == EDQUOT || done.error == EFBIG)
    throw IoError(fmt::format("{}: writing {} bytes at offset {}: {}", file_.shortage(), done.data.size(), done.offset,
                              errno_text(done.error)));
  if (done.error)
    throw IoError(fmt::format("{}: {} {} bytes at offset {}: {}", file_.path(), done.writes ? "writing" : "reading",
                              done.data.size(), done.offset, errno_text(done.error)));
  if (const auto block = done.damaged_block)
    throw IoError(
        fmt::format("{}: block {} (bytes {} to {}) is damaged: its checksum differs from that of the written data",
                    file_.path(), *block, *block * kBlockBytes, (*block + 1) * kBlockBytes));
}

// Verifies the checksums of one chunk when it arrives, while the disk reads the next chunk.
void BlockStore::verify(const FileChunk& chunk, FileTransfer& transfer) const {
  for (size_t at = 0; at < chunk.bytes; at += kBlockBytes) {
    const uint64_t block = (chunk.offset + at) / kBlockBytes;
    if (checksum(chunk.data + at) != checksums_[block])
      transfer.damaged_block = std::min(block, transfer.damaged_block.value_or(block));
  }
}

}  // namespace esp::sync
