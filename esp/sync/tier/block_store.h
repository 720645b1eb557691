// Block store: byte storage in a file, in blocks that are read and written asynchronously.
//
// `read` or `write` starts a transfer and returns a ticket; `wait` ends the transfer. Until then the caller must not
// touch the memory of the transfer. Offsets, lengths and addresses are multiples of kBlockBytes. Concurrent transfers
// must not touch the same blocks if one of them writes. A checksum of every block is kept in memory and compared on
// read; a mismatch is an IoError that names file and block. A new store contains zeros.
//
// Only one thread at a time may use a store. The account must outlive it.
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

  // Reserves disk space and charges it to the file tier of the account. Throws the errors of ReservedFile.
  BlockStore(device::MemoryAccount& account, const FileOptions& options, const std::string& name, uint64_t bytes);
  ~BlockStore();  // waits for all transfers in flight
  BlockStore(const BlockStore&) = delete;
  BlockStore& operator=(const BlockStore&) = delete;

  Ticket read(uint64_t offset, std::span<std::byte> into);
  Ticket write(uint64_t offset, std::span<const std::byte> from);
  // Waits for the transfer of `ticket`; call once per ticket. Throws IoError if the disk failed or is full, a block is
  // damaged, or the wait timed out.
  void wait(Ticket ticket);

  uint64_t bytes() const { return file_.bytes(); }
  uint64_t bytes_read() const { return bytes_read_; }
  uint64_t bytes_written() const { return bytes_written_; }
  const std::string& path() const { return file_.path(); }
  std::string_view io_name() const { return io_->name(); }
  bool direct() const { return file_.direct(); }
  // Features that are unavailable on this machine; for the log.
  const std::vector<std::string>& notes() const { return notes_; }

 private:
  struct FileTransfer {
    bool writes = false;
    uint64_t offset = 0;
    std::span<std::byte> data;
    size_t chunks_left = 0;
    int error = 0;                          // errno of the first failed chunk
    std::optional<uint64_t> damaged_block;  // index of the first damaged block
  };
  struct FileChunk {
    Ticket ticket = 0;
    uint64_t offset = 0;
    std::byte* data = nullptr;
    size_t bytes = 0;
    size_t transferred = 0;  // bytes transferred so far
  };
  struct MemoryCharge {  // charges the file's bytes to the file tier of the account
    MemoryCharge(device::MemoryAccount& account, uint64_t bytes);
    ~MemoryCharge();
    device::MemoryAccount& account;
    const uint64_t bytes;
  };

  Ticket begin(bool writes, uint64_t offset, std::span<std::byte> data);
  void submit_waiting();
  bool take_completion(Deadline deadline);
  void verify(const FileChunk& chunk, FileTransfer& transfer) const;

  const FileOptions options_;
  ReservedFile file_;
  const MemoryCharge charge_;
  std::vector<std::string> notes_;
  std::vector<uint64_t> checksums_;  // checksum of each block
  std::vector<FileTransfer> transfers_;
  std::vector<Ticket> free_tickets_;
  std::deque<FileChunk> waiting_;  // chunks that wait for a free request slot
  std::vector<FileChunk> chunks_;  // [request id]: the chunk in flight
  std::vector<size_t> free_chunks_;
  std::vector<FileRequest> batch_;
  uint64_t bytes_read_ = 0, bytes_written_ = 0;
  std::unique_ptr<FileIo> io_;  // last member: its threads end before the objects that they use
};

}  // namespace esp::sync
