#include "esp/net/shm/shm.h"

#include <cstring>

#include <fmt/format.h>

#include "esp/base/error.h"
#include "esp/net/posted.h"
#include "esp/net/shm/lanes.h"
#include "esp/net/shm/segment.h"

namespace esp::net {
namespace {

constexpr uint64_t kHeaderBytes = offsetof(Cell, bytes);

uint32_t turn_to_fill(uint64_t use) {
  return static_cast<uint32_t>(use / kCells * 2);
}
uint32_t turn_to_empty(uint64_t use) {
  return turn_to_fill(use) + 1;
}

class Shm final : public Posted {
 public:
  Shm(const World& world, const Group& group, std::unique_ptr<SharedSegment> segment)
      : Posted(world, group),
        segment_(std::move(segment)),
        map_(segment_->data(), segment_->bytes(), group.size()),
        sides_(group.members.size()) {
    for (int peer = 0; peer < size(); ++peer)
      sides_[static_cast<size_t>(peer)] = {{map_.cells(rank(), peer), map_.slots(rank(), peer)},
                                           {map_.cells(peer, rank()), map_.slots(peer, rank())}};
    hang(map_.bell(rank()));
  }
  ~Shm() override { unhang(); }

  std::string_view name() const override { return "shm"; }

 protected:
  bool push(int peer) override {
    Side& side = sides_[static_cast<size_t>(peer)].out;
    bool moved = false;
    while (Transfer* transfer = out_[static_cast<size_t>(peer)].first) {
      Cell& cell = side.cells[side.used % kCells];
      if (cell.turn.load(std::memory_order_seq_cst) != turn_to_fill(side.used)) break;
      bool small = transfer->bytes <= kInlineBytes;
      size_t bytes = std::min(transfer->bytes - transfer->moved, small ? kInlineBytes : map_.slot_bytes());
      if (bytes > 0) std::memcpy(small ? cell.bytes : slot(side), transfer->data + transfer->moved, bytes);
      cell.piece_bytes = static_cast<uint32_t>(bytes);
      cell.message_bytes = transfer->bytes;
      cell.tag = transfer->tag;
      cell.turn.store(turn_to_empty(side.used), std::memory_order_seq_cst);
      map_.bell(peer).ring();
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
      Cell& cell = side.cells[side.used % kCells];
      if (cell.turn.load(std::memory_order_seq_cst) != turn_to_empty(side.used)) break;
      if (cell.tag != transfer->tag || cell.message_bytes != transfer->bytes) {
        mismatch(peer, cell.tag, cell.message_bytes);
        return true;
      }
      bool small = transfer->bytes <= kInlineBytes;
      size_t bytes = cell.piece_bytes;
      if (bytes != std::min(transfer->bytes - transfer->moved, small ? kInlineBytes : map_.slot_bytes()))
        throw corrupt(peer, bytes);
      if (bytes > 0) deliver(*transfer, small ? cell.bytes : slot(side), bytes);
      cell.turn.store(turn_to_fill(side.used + kCells), std::memory_order_seq_cst);
      map_.bell(peer).ring();
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

  // Peers see the ring only, never a buffer.
  void withdraw(int) noexcept override {}

 private:
  struct Side {
    Cell* cells = nullptr;
    std::byte* slots = nullptr;
    uint64_t used = 0;  // cells filled, or emptied, since the beginning
  };
  struct Sides {
    Side out, in;
  };

  std::byte* slot(const Side& side) const { return side.slots + side.used % kCells * map_.slot_bytes(); }

  CommError corrupt(int peer, size_t bytes) {
    abandon();
    int member = group_.members[static_cast<size_t>(peer)];
    return CommError(
        CommError::Kind::corrupt, member,
        fmt::format("rank {} put a piece of {} bytes into shared memory where another belongs", member, bytes));
  }

  std::unique_ptr<SharedSegment> segment_;
  Lanes map_;
  std::vector<Sides> sides_;  // by peer
};

}  // namespace

bool shm_reaches(const World& world, int a, int b) {
  return world.same_host(a, b);
}

std::unique_ptr<Transport> open_shm(const World& world, const Group& group) {
  Deadline deadline = Deadline::after(world.options.start_timeout);
  size_t bytes = group.rank == 0 ? Lanes::segment_bytes(group.size(), shared_memory_left()) : 0;
  auto segment = std::make_unique<SharedSegment>(world, group, "lanes", bytes, deadline);
  return std::make_unique<Shm>(world, group, std::move(segment));
}

}  // namespace esp::net
