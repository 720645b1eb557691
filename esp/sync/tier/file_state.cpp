// Optimizer state in a file, streamed through three tile buffers in host memory: while one tile is updated, the next is
// read and the previous is written. In the file the slots of a tile are adjacent, tile after tile, so a tile is one
// sequential transfer.
//
// If host_bytes allows, some tiles stay in host memory permanently. They are spread evenly among the others, so that
// the disk works while they are updated.
#include <array>
#include <optional>
#include <utility>

#include <fmt/format.h>

#include "esp/base/check.h"
#include "esp/base/error.h"
#include "esp/sync/tier/block_store.h"
#include "esp/sync/tier/state_tier.h"

namespace esp::sync {
namespace {

constexpr size_t kNumBuffers = 3;
constexpr size_t kSlotAlignment = 64;  // cache line: no SIMD vector of a slot spans two lines

size_t round_up(size_t bytes, size_t to) {
  return (bytes + to - 1) / to * to;
}

class FileState final : public StateTier {
 public:
  FileState(const StateShape& shape, const FileOptions& options)
      : shape_(shape),
        plan_(*shape.plan),
        buffer_bytes_(bytes_of(plan_.largest)),
        memory_(shape.host->account(), kNumBuffers * buffer_bytes_ + kBlockBytes,
                {.category = device::MemoryCategory::buffer, .huge_pages = true, .zero = true}),
        resident_(place_tiles(shape)) {
    // The distance between buffers is a whole number of blocks, so aligning the first buffer aligns all.
    first_ = aligned(memory_.data());
    store_ = make_store(options, std::max<uint64_t>(file_bytes_, kBlockBytes));
    at_.resize(shape.slots.size());
  }
  ~FileState() override { abandon(); }

  size_t num_tiles() const override { return plan_.tiles.size(); }
  void begin(Access access, std::vector<size_t> order) override;
  void visit_next(size_t num, const Visit& visit) override;
  void end() override;
  FileTraffic traffic() const override { return traffic_; }
  std::vector<std::string> notes() const override { return store_->notes(); }

 private:
  // Location of a tile, in the file or in memory.
  struct TileLocation {
    bool resident = false;
    uint64_t offset = 0;  // byte offset in the file; for a resident tile, in the resident memory
  };
  static std::byte* aligned(std::byte* data) {
    const auto offset = reinterpret_cast<uintptr_t>(data);
    return data + (round_up(offset, kBlockBytes) - offset);
  }
  size_t slot_bytes(size_t slot, int64_t count) const {
    return static_cast<size_t>(count) * size_of(shape_.slots[slot]);
  }
  // Byte offset of a slot in its tile. For slot = number of slots it is the size of the tile.
  size_t slot_at(size_t slot, int64_t count) const {
    size_t offset = 0;
    for (size_t i = 0; i < slot; ++i) offset += round_up(slot_bytes(i, count), kSlotAlignment);
    return offset;
  }
  size_t bytes_of(int64_t count) const { return round_up(slot_at(shape_.slots.size(), count), kBlockBytes); }
  uint64_t payload_of(size_t tile) const {
    uint64_t sum = 0;
    for (size_t slot = 0; slot < shape_.slots.size(); ++slot) sum += slot_bytes(slot, plan_.tiles[tile].count());
    return sum;
  }
  size_t tile_bytes(size_t tile) const { return bytes_of(plan_.tiles[tile].count()); }
  // buffer of the streamed tile with index `streamed` in streamed_
  std::span<std::byte> buffer(size_t streamed) const {
    return {first_ + streamed % kNumBuffers * buffer_bytes_, tile_bytes(streamed_[streamed])};
  }
  device::HostBuffer place_tiles(const StateShape& shape);
  std::unique_ptr<BlockStore> make_store(const FileOptions& options, uint64_t bytes) const;
  void read_ahead();
  void begin_write(size_t streamed);
  void finish(std::optional<BlockStore::Ticket>& ticket);
  void abandon() noexcept;

  const StateShape shape_;
  const TilePlan& plan_;
  const size_t buffer_bytes_;
  const device::HostBuffer memory_;
  std::vector<TileLocation> locations_;  // one location per tile
  uint64_t file_bytes_ = 0;
  const device::HostBuffer resident_;
  std::unique_ptr<BlockStore> store_;
  std::byte* first_ = nullptr;
  std::vector<std::byte*> at_;
  Access access_ = Access::read;
  // order_: tiles to visit, in order; streamed_: those of them that are in the file
  std::vector<size_t> order_, streamed_;
  // next_ and next_streamed_: next index in order_ and streamed_; num_read_: number of reads started
  size_t next_ = 0, next_streamed_ = 0, num_read_ = 0;
  std::array<std::optional<BlockStore::Ticket>, kNumBuffers> reads_, writes_;  // [buffer]: the transfer in flight
  FileTraffic traffic_;
};

// Decides for each tile whether it is resident. The resident share of the bytes so far is kept as large as allowed, so
// neither resident nor streamed tiles come in long sequences.
device::HostBuffer FileState::place_tiles(const StateShape& shape) {
  uint64_t total = 0, resident = 0;
  for (size_t tile = 0; tile < plan_.tiles.size(); ++tile) total += tile_bytes(tile);
  const uint64_t room = std::min(shape.host_bytes, total);
  const double share = total > 0 ? static_cast<double>(room) / static_cast<double>(total) : 0;
  uint64_t seen = 0;
  for (size_t tile = 0; tile < plan_.tiles.size(); ++tile) {
    const uint64_t bytes = tile_bytes(tile);
    seen += bytes;
    const bool stays = resident + bytes <= room && (room == total || static_cast<double>(resident + bytes) <=
                                                                         share * static_cast<double>(seen) + 1);
    locations_.push_back({stays, stays ? resident : file_bytes_});
    (stays ? resident : file_bytes_) += bytes;
  }
  return device::HostBuffer(shape.host->account(), resident,
                            {.category = device::MemoryCategory::optimizer, .huge_pages = true});
}

std::unique_ptr<BlockStore> FileState::make_store(const FileOptions& options, uint64_t bytes) const {
  try {
    return std::make_unique<BlockStore>(shape_.host->account(), options, "optimizer", bytes);
  } catch (const IoError& error) {
    size_t each = 0;
    for (const DType type : shape_.slots) each += size_of(type);
    throw IoError(fmt::format("{}. Optimizer state of {} elements, {} bytes each. Use more ranks or a larger disk.",
                              error.what(), plan_.count, each));
  }
}

void FileState::begin(Access access, std::vector<size_t> order) {
  abandon();
  access_ = access;
  order_ = std::move(order);
  streamed_.clear();
  for (const size_t tile : order_)
    if (!locations_[tile].resident) streamed_.push_back(tile);
  next_ = next_streamed_ = num_read_ = 0;
  read_ahead();
}

// Reads the next two streamed tiles; the third buffer is being written.
void FileState::read_ahead() {
  if (access_ == Access::write) return;
  for (; num_read_ < std::min(next_streamed_ + kNumBuffers - 1, streamed_.size()); ++num_read_) {
    const size_t mine = num_read_ % kNumBuffers, tile = streamed_[num_read_];
    finish(writes_[mine]);
    const std::span<std::byte> into = buffer(num_read_);
    reads_[mine] = store_->read(locations_[tile].offset, into);
    const uint64_t payload = payload_of(tile);
    traffic_.read += payload;
    traffic_.padding_read += into.size() - payload;
  }
}

void FileState::begin_write(size_t streamed) {
  const std::span<std::byte> from = buffer(streamed);
  const size_t tile = streamed_[streamed];
  writes_[streamed % kNumBuffers] = store_->write(locations_[tile].offset, from);
  const uint64_t payload = payload_of(tile);
  traffic_.written += payload;
  traffic_.padding_written += from.size() - payload;
}

void FileState::finish(std::optional<BlockStore::Ticket>& ticket) {
  if (ticket) store_->wait(*std::exchange(ticket, std::nullopt));
}

// Waits for all transfers. Used after an error, and when an order of visits is abandoned.
void FileState::abandon() noexcept {
  for (auto* tickets : {&reads_, &writes_})
    for (auto& ticket : *tickets) try {
        finish(ticket);
      } catch (const Error&) {
        // Ignored, because the first error is being thrown already.
      }
}

void FileState::visit_next(size_t num, const Visit& visit) try {
  ESP_CHECK(next_ + num <= order_.size(), "visit_next: got {} tiles from index {}; the order has {} tiles", num, next_,
            order_.size());
  for (const size_t end = next_ + num; next_ < end; ++next_) {
    const size_t tile = order_[next_];
    const bool resident = locations_[tile].resident;
    const size_t streamed = next_streamed_;
    if (!resident) {
      finish(reads_[streamed % kNumBuffers]);
      // Access::write starts no read, so the previous write of this buffer may still be running
      finish(writes_[streamed % kNumBuffers]);
    }
    std::byte* const data = resident ? resident_.data() + locations_[tile].offset : buffer(streamed).data();
    for (size_t slot = 0; slot < at_.size(); ++slot) at_[slot] = data + slot_at(slot, plan_.tiles[tile].count());
    visit(plan_.tiles[tile], at_);
    if (resident) continue;
    if (access_ != Access::read) begin_write(streamed);
    ++next_streamed_;
    read_ahead();
  }
} catch (...) {
  abandon();
  throw;
}

void FileState::end() try {
  for (auto& ticket : writes_) finish(ticket);
} catch (...) {
  abandon();
  throw;
}

}  // namespace

std::unique_ptr<StateTier> make_file_state(const StateShape& shape, const FileOptions& options) {
  return std::make_unique<FileState>(shape, options);
}

}  // namespace esp::sync
