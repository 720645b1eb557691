// Optimizer state in a file, streamed through three tile buffers in host memory: while one tile is updated, the next is
// read and the previous written. In the file the slots of a tile are adjacent, tile after tile, so a tile is one
// sequential transfer.
//
// With host memory for a part of the state, that many tiles stay in memory permanently, evenly spaced among the others,
// so that the disk works while they are updated.
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
constexpr size_t kSlotAlignment = 64;  // so that no slot's vector spans cache lines

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
        resident_(place(shape)) {
    // The stride of the buffers is a whole number of blocks: aligning the first aligns all.
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
  // Location of a tile: in the file, or in memory.
  struct Place {
    bool resident = false;
    uint64_t at = 0;  // byte offset in the file, or in the memory
  };
  static std::byte* aligned(std::byte* data) {
    const auto at = reinterpret_cast<uintptr_t>(data);
    return data + (round_up(at, kBlockBytes) - at);
  }
  size_t slot_bytes(size_t slot, int64_t count) const {
    return static_cast<size_t>(count) * size_of(shape_.slots[slot]);
  }
  // Offset of a slot in its tile; of the slot after the last: the size.
  size_t slot_at(size_t slot, int64_t count) const {
    size_t at = 0;
    for (size_t i = 0; i < slot; ++i) at += round_up(slot_bytes(i, count), kSlotAlignment);
    return at;
  }
  size_t bytes_of(int64_t count) const { return round_up(slot_at(shape_.slots.size(), count), kBlockBytes); }
  uint64_t payload_of(size_t tile) const {
    uint64_t sum = 0;
    for (size_t slot = 0; slot < shape_.slots.size(); ++slot) sum += slot_bytes(slot, plan_.tiles[tile].count());
    return sum;
  }
  size_t tile_bytes(size_t tile) const { return bytes_of(plan_.tiles[tile].count()); }
  std::span<std::byte> buffer(size_t passing) const {  // of a streamed tile
    return {first_ + passing % kNumBuffers * buffer_bytes_, tile_bytes(passing_[passing])};
  }
  device::HostBuffer place(const StateShape& shape);
  std::unique_ptr<BlockStore> make_store(const FileOptions& options, uint64_t bytes) const;
  void read_ahead();
  void begin_write(size_t passing);
  void finish(std::optional<BlockStore::Ticket>& ticket);
  void abandon() noexcept;

  const StateShape shape_;
  const TilePlan& plan_;
  const size_t buffer_bytes_;
  const device::HostBuffer memory_;
  std::vector<Place> places_;  // by tile
  uint64_t file_bytes_ = 0;
  const device::HostBuffer resident_;
  std::unique_ptr<BlockStore> store_;
  std::byte* first_ = nullptr;
  std::vector<std::byte*> at_;
  Access access_ = Access::read;
  std::vector<size_t> order_, passing_;                // tiles to visit; the streamed ones of them
  size_t next_ = 0, next_passing_ = 0, num_read_ = 0;  // in order_, in passing_; reads started of passing_
  std::array<std::optional<BlockStore::Ticket>, kNumBuffers> reads_, writes_;  // in flight, by buffer
  FileTraffic traffic_;
};

// Keeps the host's share of the bytes so far as large as allowed, so neither kind comes in long sequences.
device::HostBuffer FileState::place(const StateShape& shape) {
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
    places_.push_back({stays, stays ? resident : file_bytes_});
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
  passing_.clear();
  for (const size_t tile : order_)
    if (!places_[tile].resident) passing_.push_back(tile);
  next_ = next_passing_ = num_read_ = 0;
  read_ahead();
}

// The next tile and the one after it; the third buffer is being written.
void FileState::read_ahead() {
  if (access_ == Access::write) return;
  for (; num_read_ < std::min(next_passing_ + kNumBuffers - 1, passing_.size()); ++num_read_) {
    const size_t mine = num_read_ % kNumBuffers, tile = passing_[num_read_];
    finish(writes_[mine]);
    const std::span<std::byte> into = buffer(num_read_);
    reads_[mine] = store_->read(places_[tile].at, into);
    const uint64_t payload = payload_of(tile);
    traffic_.read += payload;
    traffic_.padding_read += into.size() - payload;
  }
}

void FileState::begin_write(size_t passing) {
  const std::span<std::byte> from = buffer(passing);
  const size_t tile = passing_[passing];
  writes_[passing % kNumBuffers] = store_->write(places_[tile].at, from);
  const uint64_t payload = payload_of(tile);
  traffic_.written += payload;
  traffic_.padding_written += from.size() - payload;
}

void FileState::finish(std::optional<BlockStore::Ticket>& ticket) {
  if (ticket) store_->wait(*std::exchange(ticket, std::nullopt));
}

// Waits for all transfers of the buffers, after an error and when an order is abandoned.
void FileState::abandon() noexcept {
  for (auto* tickets : {&reads_, &writes_})
    for (auto& ticket : *tickets) try {
        finish(ticket);
      } catch (const Error&) {
        // The first error is being thrown already.
      }
}

void FileState::visit_next(size_t num, const Visit& visit) try {
  ESP_CHECK(next_ + num <= order_.size(), "{} tiles from {} on of {}", num, next_, order_.size());
  for (const size_t end = next_ + num; next_ < end; ++next_) {
    const size_t tile = order_[next_];
    const bool resident = places_[tile].resident;
    const size_t passing = next_passing_;
    if (!resident) {
      finish(reads_[passing % kNumBuffers]);
      finish(writes_[passing % kNumBuffers]);  // write-only visits
    }
    std::byte* const data = resident ? resident_.data() + places_[tile].at : buffer(passing).data();
    for (size_t slot = 0; slot < at_.size(); ++slot) at_[slot] = data + slot_at(slot, plan_.tiles[tile].count());
    visit(plan_.tiles[tile], at_);
    if (resident) continue;
    if (access_ != Access::read) begin_write(passing);
    ++next_passing_;
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
