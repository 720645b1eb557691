#include "esp/net/shm/shm.h"

#include <cstring>

#include <fmt/format.h>

#include "esp/base/error.h"
#include "esp/net/queued_transport.h"
#include "esp/net/shm/ring_layout.h"
#include "esp/net/shm/segment.h"

namespace esp::net {
namespace {

constexpr uint64_t kHeaderBytes = offsetof(ShmCell, bytes);

uint32_t turn_to_fill(uint64_t use) {
  return static_cast<uint32_t>(use / kCells * 2);
}
uint32_t turn_to_empty(uint64_t use) {
  return turn_to_fill(use) + 1;
}

class Shm final : public QueuedTransport {
 public:
  Shm(const World& world, const Group& group, std::unique_ptr<SharedSegment> segment)
      : QueuedTransport(world, group),
        segment_(std::move(segment)),
        map_(segment_->data(), segment_->bytes(), group.size()),
        sides_(group.members.size()) {
    for (int peer = 0; peer < size(); ++peer)
      sides_[static_cast<size_t>(peer)] = {{map_.cells(rank(), peer), map_.slots(rank(), peer)},
                                           {map_.cells(peer, rank()), map_.slots(peer, rank())}};
    set_wakeup(map_.event(rank()));
  }
  ~Shm() override { clear_wakeup(); }

  std::string_view name() const override { return "shm"; }

 protected:
  bool push(int peer) override {
    Side& side = sides_[static_cast<size_t>(peer)].out;
    bool moved = false;
    while (Transfer* transfer = out_[static_cast<size_t>(peer)].first) {
      ShmCell& cell = side.cells[side.used % kCells];
      if (cell.turn.load(std::memory_order_seq_cst) != turn_to_fill(side.used)) break;
      bool small = transfer->bytes <= kInlineBytes;
      size_t bytes = std::min(transfer->bytes - transfer->moved, small ? kInlineBytes : map_.slot_bytes());
      if (bytes > 0) std::memcpy(small ? cell.bytes : slot(side), transfer->data + transfer->moved, bytes);
      cell.piece_bytes = static_cast<uint32_t>(bytes);
      cell.message_bytes = transfer->bytes;
      cell.tag = transfer->tag;
      cell.turn.store(turn_to_empty(side.used), std::memory_order_seq_cst);
      map_.event(peer).notify();
      ++side.used;
      moved = true;
      transfer->moved += bytes;
      traffic_[static_cast<size_t>(peer)].header_bytes_sent += kHeaderBytes;
      if (transfer->moved == transfer->bytes) finish_send(peer);
    }
    return moved;
  }

  bool pull(int peer) override {
    Side& side = sides_[static_cast<size_t>(peer)].in;
    bool moved = false;
    while (Transfer* transfer = in_[static_cast<size_t>(peer)].first) {
      ShmCell& cell = side.cells[side.used % kCells];
      if (cell.turn.load(std::memory_order_seq_cst) != turn_to_empty(side.used)) break;
      if (cell.tag != transfer->tag || cell.message_bytes != transfer->bytes) {
        mismatch(peer, cell.tag, cell.message_bytes);
        return true;
      }
      bool small = transfer->bytes <= kInlineBytes;
      size_t bytes = cell.piece_bytes;
      const size_t expected = std::min(transfer->bytes - transfer->moved, small ? kInlineBytes : map_.slot_bytes());
      if (bytes != expected) throw corrupt(peer, bytes, expected);
      if (bytes > 0) deliver(*transfer, small ? cell.bytes : slot(side), bytes);
      cell.turn.store(turn_to_fill(side.used + kCells), std::memory_order_seq_cst);
      map_.event(peer).notify();
      ++side.used;
      moved = true;
      if (transfer->moved == transfer->bytes) finish_receive(peer);
    }
    return moved;
  }

  bool can_push(int peer) const override {
    const Side& side = sides_[static_cast<size_t>(peer)].out;
    return side.cells[side.used % kCells].turn.load(std::memory_order_seq_cst) == turn_to_fill(side.used);
  }

  bool can_pull(int peer) const override {
    const Side& side = sides_[static_cast<size_t>(peer)].in;
    return side.cells[side.used % kCells].turn.load(std::memory_order_seq_cst) == turn_to_empty(side.used);
  }

  // Nothing to cancel: peers access only the ring, never a caller's buffer.
  void cancel_sends(int) noexcept override {}

 private:
  struct Side {
    ShmCell* cells = nullptr;
    std::byte* slots = nullptr;
    uint64_t used = 0;  // cells that this side has filled (out) or emptied (in) so far
  };
  struct Sides {
    Side out, in;
  };

  std::byte* slot(const Side& side) const { return side.slots + side.used % kCells * map_.slot_bytes(); }

  CommError corrupt(int peer, size_t bytes, size_t expected) {
    abandon();
    int member = group_.members[static_cast<size_t>(peer)];
    return CommError(
        CommError::Kind::corrupt, member,
        fmt::format("shared memory: got a chunk of {} bytes from rank {}; expected {} bytes", bytes, member, expected));
  }

  std::unique_ptr<SharedSegment> segment_;
  ShmRingLayout map_;
  std::vector<Sides> sides_;  // index: peer
};

}  // namespace

bool shm_reaches(const World& world, int a, int b) {
  return world.same_host(a, b);
}

std::unique_ptr<Transport> open_shm(const World& world, const Group& group) {
  Deadline deadline = Deadline::after(world.options.start_timeout);
  size_t bytes = group.rank == 0 ? ShmRingLayout::segment_bytes(group.size(), available_shared_memory()) : 0;
  auto segment = std::make_unique<SharedSegment>(world, group, "lanes", bytes, deadline);
  return std::make_unique<Shm>(world, group, std::move(segment));
}

}  // namespace esp::net
