// File store: memory in a file. Blocks are read and written asynchronously.
//
// `read` or `write` starts a transfer and `wait` on its ticket ends it; until then the store owns its memory. Offsets,
// lengths and addresses are multiples of kBlockBytes. Concurrent transfers must not touch the same blocks if one of
// them writes. A checksum of every block is kept in memory and compared on read: a mismatch is an IoError that names
// file and block. A new store contains zeros.
//
// One thread at a time. The account outlives the store.
#pragma once

#include <cstddef>
#include <cstdint>
#include <deque>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "esp/device/memory.h"
#include "esp/sync/tier/file_io.h"
#include "esp/sync/tier/reserved_file.h"

namespace esp::sync {

class BlockStore {
 public:
  using Ticket = size_t;

  // Reserves disk space and charges the account's file tier; throws as ReservedFile does.
  BlockStore(device::MemoryAccount& account, const FileOptions& options, const std::string& name, uint64_t bytes);
  ~BlockStore();  // waits for transfers in flight
  BlockStore(const BlockStore&) = delete;
  BlockStore& operator=(const BlockStore&) = delete;

  Ticket read(uint64_t offset, std::span<std::byte> into);
  Ticket write(uint64_t offset, std::span<const std::byte> from);
  // IoError: the disk failed or is full, a block is damaged, or the timeout expired. Once per ticket.
  void wait(Ticket ticket);

  uint64_t bytes() const { return file_.bytes(); }
  uint64_t bytes_read() const { return bytes_read_; }
  uint64_t bytes_written() const { return bytes_written_; }
  const std::string& path() const { return file_.path(); }
  std::string_view io_name() const { return io_->name(); }
  bool direct() const { return file_.direct(); }
  const std::vector<std::string>& notes() const { return notes_; }  // unavailable features; for the log

 private:
  struct Transfer {
    bool writes = false;
    uint64_t offset = 0;
    std::span<std::byte> data;
    size_t chunks_left = 0;
    int error = 0;                          // errno of the first failed chunk
    std::optional<uint64_t> damaged_block;  // the first found
  };
  struct Chunk {
    Ticket ticket = 0;
    uint64_t offset = 0;
    std::byte* data = nullptr;
    size_t bytes = 0;
    size_t moved = 0;  // bytes transferred
  };
  struct Charge {  // of the file tier
    Charge(device::MemoryAccount& account, uint64_t bytes);
    ~Charge();
    device::MemoryAccount& account;
    const uint64_t bytes;
  };

  Ticket begin(bool writes, uint64_t offset, std::span<std::byte> data);
  void submit_waiting();
  bool take_completion(Deadline deadline);
  void verify(const Chunk& chunk, Transfer& transfer) const;

  const FileOptions options_;
  ReservedFile file_;
  const Charge charge_;
  std::vector<std::string> notes_;
  std::vector<uint64_t> checksums_;  // by block
  std::vector<Transfer> transfers_;
  std::vector<Ticket> free_tickets_;
  std::deque<Chunk> waiting_;  // queued
  std::vector<Chunk> chunks_;  // in flight, by request id
  std::vector<size_t> free_chunks_;
  std::vector<FileRequest> batch_;
  uint64_t bytes_read_ = 0, bytes_written_ = 0;
  std::unique_ptr<FileIo> io_;  // last member: its threads end before the objects they use
};

}  // namespace esp::sync
