// State in a file, streamed through three tiles of the host's memory: while tile i is updated, i + 1 is being read and
// i − 1 being written. In the file the slots of a tile lie one after the other, tile after tile, so that a tile is one
// sequential transfer.
#include <array>
#include <cstring>
#include <optional>
#include <utility>

#include <fmt/format.h>

#include "esp/base/error.h"
#include "esp/sync/tier/file_store.h"
#include "esp/sync/tier/state_tier.h"

namespace esp::sync {
namespace {

constexpr size_t kNumBuffers = 3;
constexpr size_t kSlotAlignment = 64;  // so that a vector of no slot straddles cache lines

size_t round_up(size_t bytes, size_t to) {
  return (bytes + to - 1) / to * to;
}

class FileState final : public StateTier {
 public:
  FileState(const StateShape& shape, const FileOptions& options)
      : shape_(shape),
        plan_(*shape.plan),
        // Every tile but the last has the size of the largest.
        tile_bytes_(bytes_of(plan_.largest)),
        memory_(shape.host->account(), kNumBuffers * tile_bytes_ + kBlockBytes,
                {.category = device::MemoryCategory::buffer, .huge_pages = true, .zero = true}) {
    uint64_t bytes = kBlockBytes;  // a rank that owns nothing still has its file
    if (!plan_.tiles.empty()) bytes = (plan_.tiles.size() - 1) * tile_bytes_ + bytes_of(plan_.tiles.back().count());
    store_ = make_store(options, bytes);
    // The stride of the buffers is a whole number of blocks: aligning the first aligns all.
    first_ = memory_.data() + (round_up(reinterpret_cast<uintptr_t>(memory_.data()), kBlockBytes) -
                               reinterpret_cast<uintptr_t>(memory_.data()));
    at_.resize(shape.num_slots);
  }

  void sweep(Access access, const Visit& visit) override;
  std::vector<tensor::Tensor> gather() override;
  void scatter(std::span<const tensor::Tensor> slots) override;
  FileTraffic traffic() const override { return traffic_; }
  std::vector<std::string> notes() const override { return store_->notes(); }

 private:
  size_t slot_bytes(int64_t count) const { return static_cast<size_t>(count) * size_of(shape_.type); }
  size_t slot_stride(int64_t count) const { return round_up(slot_bytes(count), kSlotAlignment); }
  size_t bytes_of(int64_t count) const { return round_up(shape_.num_slots * slot_stride(count), kBlockBytes); }
  std::span<std::byte> buffer(size_t tile) const {
    return {first_ + tile % kNumBuffers * tile_bytes_, bytes_of(plan_.tiles[tile].count())};
  }
  std::unique_ptr<FileStore> make_store(const FileOptions& options, uint64_t bytes) const;
  void begin_read(size_t tile);
  void begin_write(size_t tile);
  void end(std::optional<FileStore::Ticket>& ticket);
  void abandon() noexcept;

  const StateShape shape_;
  const TilePlan& plan_;
  const size_t tile_bytes_;
  const device::HostBuffer memory_;
  std::unique_ptr<FileStore> store_;
  std::byte* first_ = nullptr;
  std::vector<std::byte*> at_;
  std::array<std::optional<FileStore::Ticket>, kNumBuffers> reads_, writes_;  // under way, by buffer
  FileTraffic traffic_;
};

std::unique_ptr<FileStore> FileState::make_store(const FileOptions& options, uint64_t bytes) const {
  try {
    return std::make_unique<FileStore>(shape_.host->account(), options, "optimizer", bytes);
  } catch (const IoError& error) {
    const size_t each = shape_.num_slots * size_of(shape_.type);
    throw IoError(fmt::format("{} (optimizer state of {} elements, {} bytes each; more ranks or a larger disk)",
                              error.what(), plan_.count, each));
  }
}

void FileState::begin_read(size_t tile) {
  const std::span<std::byte> into = buffer(tile);
  reads_[tile % kNumBuffers] = store_->read(tile * tile_bytes_, into);
  const uint64_t payload = shape_.num_slots * slot_bytes(plan_.tiles[tile].count());
  traffic_.read += payload;
  traffic_.padding_read += into.size() - payload;
}

void FileState::begin_write(size_t tile) {
  const std::span<std::byte> from = buffer(tile);
  writes_[tile % kNumBuffers] = store_->write(tile * tile_bytes_, from);
  const uint64_t payload = shape_.num_slots * slot_bytes(plan_.tiles[tile].count());
  traffic_.written += payload;
  traffic_.padding_written += from.size() - payload;
}

void FileState::end(std::optional<FileStore::Ticket>& ticket) {
  if (ticket) store_->wait(*std::exchange(ticket, std::nullopt));
}

// After an error the buffers must be free of transfers before anyone touches them again.
void FileState::abandon() noexcept {
  for (auto* tickets : {&reads_, &writes_})
    for (auto& ticket : *tickets) try {
        end(ticket);
      } catch (const Error&) {
        // The first error is already on its way.
      }
}

void FileState::sweep(Access access, const Visit& visit) try {
  const bool reads = access != Access::write, writes = access != Access::read;
  const size_t num_tiles = plan_.tiles.size();
  for (size_t tile = 0; reads && tile < std::min(num_tiles, kNumBuffers - 1); ++tile) begin_read(tile);
  for (size_t tile = 0; tile < num_tiles; ++tile) {
    const size_t mine = tile % kNumBuffers, next = (tile + kNumBuffers - 1) % kNumBuffers;
    if (reads) end(reads_[mine]);
    if (!reads) end(writes_[mine]);
    for (size_t slot = 0; slot < at_.size(); ++slot)
      at_[slot] = buffer(tile).data() + slot * slot_stride(plan_.tiles[tile].count());
    visit(plan_.tiles[tile], at_);
    if (writes) begin_write(tile);
    // The buffer of the tile before this one takes the tile after the next.
    if (reads && tile + kNumBuffers - 1 < num_tiles) {
      end(writes_[next]);
      begin_read(tile + kNumBuffers - 1);
    }
  }
  for (auto& ticket : writes_) end(ticket);
} catch (...) {
  abandon();
  throw;
}

std::vector<tensor::Tensor> FileState::gather() {
  std::vector<tensor::Tensor> slots;
  for (size_t slot = 0; slot < shape_.num_slots; ++slot)
    slots.emplace_back(*shape_.host, tensor::Shape{plan_.count}, shape_.type, device::MemoryCategory::optimizer);
  sweep(Access::read, [&](const TilePlan::Tile& tile, std::span<std::byte* const> from) {
    for (size_t slot = 0; slot < slots.size(); ++slot)
      std::memcpy(slots[slot].as<std::byte>() + slot_bytes(tile.begin), from[slot], slot_bytes(tile.count()));
  });
  return slots;
}

void FileState::scatter(std::span<const tensor::Tensor> slots) {
  sweep(Access::write, [&](const TilePlan::Tile& tile, std::span<std::byte* const> to) {
    for (size_t slot = 0; slot < slots.size(); ++slot)
      std::memcpy(to[slot], slots[slot].as<std::byte>() + slot_bytes(tile.begin), slot_bytes(tile.count()));
  });
}

}  // namespace

std::unique_ptr<StateTier> make_file_state(const StateShape& shape, const FileOptions& options) {
  return std::make_unique<FileState>(shape, options);
}

}  // namespace esp::sync
