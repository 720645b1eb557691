#include "esp/net/inproc/inproc.h"

#include <sched.h>

#include <array>
#include <atomic>
#include <mutex>

#include "esp/base/check.h"
#include "esp/net/inproc/fabric.h"
#include "esp/net/queued_transport.h"

namespace esp::net {
namespace {

// maximum of pending announcements per ordered pair; further sends wait in the sender's queue
constexpr size_t kRing = 16;
constexpr size_t kApplyBytes = size_t{64} << 10;  // bytes per `apply` call, so that the block stays in the inner caches

enum class Phase : uint32_t { free, posted, taking, taken, withdrawn };

struct alignas(64) Announcement {
  std::atomic<Phase> phase{Phase::free};
  const std::byte* data = nullptr;
  size_t bytes = 0;
  Tag tag;
};

struct Channel {
  std::array<Announcement, kRing> ring;
};

// State shared by the members of one group. Channels are created on first use, because most pairs of a large group
// never communicate.
class ChannelTable {
 public:
  explicit ChannelTable(int size)
      : size_(static_cast<size_t>(size)),
        events_(std::make_unique<FutexEvent[]>(size_)),
        channels_(std::make_unique<std::atomic<Channel*>[]>(size_ * size_)) {}
  ~ChannelTable() {
    for (size_t i = 0; i < size_ * size_; ++i) delete channels_[i].load();
  }
  ChannelTable(const ChannelTable&) = delete;
  ChannelTable& operator=(const ChannelTable&) = delete;

  FutexEvent& event(int rank) { return events_[static_cast<size_t>(rank)]; }

  Channel& channel(int from, int to) {
    std::atomic<Channel*>& entry = channels_[static_cast<size_t>(from) * size_ + static_cast<size_t>(to)];
    if (Channel* made = entry.load(std::memory_order_acquire)) return *made;
    std::lock_guard lock(making_);
    if (!entry.load(std::memory_order_relaxed)) entry.store(new Channel, std::memory_order_release);
    return *entry.load(std::memory_order_relaxed);
  }

 private:
  const size_t size_;
  std::unique_ptr<FutexEvent[]> events_;
  std::mutex making_;  // locked while a channel is created
  std::unique_ptr<std::atomic<Channel*>[]> channels_;
};

class Inproc final : public QueuedTransport {
 public:
  Inproc(const World& world, const Group& group, std::shared_ptr<ChannelTable> table)
      : QueuedTransport(world, group), table_(std::move(table)), lanes_(group.members.size()) {
    set_wakeup(table_->event(rank()));
  }
  ~Inproc() override {
    clear_wakeup();
    abandon();
  }

  std::string_view name() const override { return "inproc"; }

 protected:
  bool push(int peer) override {
    Lane& lane = lanes_[static_cast<size_t>(peer)];
    if (!lane.out) lane.out = &table_->channel(rank(), peer);
    bool moved = false;
    while (is_taken(lane)) {
      slot(*lane.out, lane.acknowledged++).phase.store(Phase::free, std::memory_order_relaxed);
      finish_send(peer);
      moved = true;
    }
    while (Transfer* transfer = next_to_announce(peer, lane)) {
      Announcement& announcement = slot(*lane.out, lane.announced++);
      announcement.data = transfer->data;
      announcement.bytes = transfer->bytes;
      announcement.tag = transfer->tag;
      announcement.phase.store(Phase::posted, std::memory_order_seq_cst);
      lane.last_announced = transfer;
      table_->event(peer).notify();
      moved = true;
    }
    return moved;
  }

  bool pull(int peer) override {
    Lane& lane = lanes_[static_cast<size_t>(peer)];
    if (!lane.in) lane.in = &table_->channel(peer, rank());
    bool moved = false;
    while (Transfer* transfer = in_[static_cast<size_t>(peer)].first) {
      Announcement& announcement = slot(*lane.in, lane.consumed);
      Phase expected = Phase::posted;
      if (!announcement.phase.compare_exchange_strong(expected, Phase::taking)) break;
      if (announcement.tag != transfer->tag || announcement.bytes != transfer->bytes) {
        // returns the message to `posted`, so that the sender does not count it as delivered
        announcement.phase.store(Phase::posted);
        mismatch(peer, announcement.tag, announcement.bytes);
        return true;
      }
      take(*transfer, announcement.data);
      announcement.phase.store(Phase::taken, std::memory_order_seq_cst);
      ++lane.consumed;
      table_->event(peer).notify();
      finish_receive(peer);
      moved = true;
    }
    return moved;
  }

  bool can_push(int peer) const override {
    const Lane& lane = lanes_[static_cast<size_t>(peer)];
    return is_taken(lane) || next_to_announce(peer, lane);
  }

  bool can_pull(int peer) const override {
    const Lane& lane = lanes_[static_cast<size_t>(peer)];
    return !lane.in || slot(*lane.in, lane.consumed).phase.load(std::memory_order_seq_cst) == Phase::posted;
  }

  void cancel_sends(int peer) noexcept override {
    Lane& lane = lanes_[static_cast<size_t>(peer)];
    for (; lane.acknowledged != lane.announced; ++lane.acknowledged) {
      std::atomic<Phase>& phase = slot(*lane.out, lane.acknowledged).phase;
      for (Phase expected = Phase::posted; !phase.compare_exchange_weak(expected, Phase::withdrawn);) {
        if (expected == Phase::taken) break;
        expected = Phase::posted;
        sched_yield();  // the receiver is consuming this message: wait until it has finished
      }
    }
  }

 private:
  struct Lane {
    Channel* out = nullptr;
    Channel* in = nullptr;
    // messages sent on `out` so far, and how many of them the receiver has consumed
    uint64_t announced = 0, acknowledged = 0;
    uint64_t consumed = 0;               // messages received on `in` so far
    Transfer* last_announced = nullptr;  // valid while announced != acknowledged
  };

  static Announcement& slot(Channel& channel, uint64_t i) { return channel.ring[i % kRing]; }

  static bool is_taken(const Lane& lane) {
    return lane.acknowledged != lane.announced &&
           slot(*lane.out, lane.acknowledged).phase.load(std::memory_order_seq_cst) == Phase::taken;
  }

  Transfer* next_to_announce(int peer, const Lane& lane) const {
    if (lane.announced - lane.acknowledged >= kRing) return nullptr;
    return lane.announced == lane.acknowledged ? out_[static_cast<size_t>(peer)].first : lane.last_announced->next;
  }

  static void take(Transfer& transfer, const std::byte* data) {
    if (!transfer.apply) return deliver(transfer, data, transfer.bytes);
    while (transfer.moved < transfer.bytes)
      deliver(transfer, data + transfer.moved, std::min(kApplyBytes, transfer.bytes - transfer.moved));
  }

  std::shared_ptr<ChannelTable> table_;
  std::vector<Lane> lanes_;  // index: peer
};

}  // namespace

bool inproc_reaches(const World& world, int a, int b) {
  return ThreadFabric::from(world) != nullptr && world.same_process(a, b);
}

std::unique_ptr<Transport> open_inproc(const World& world, const Group& group) {
  auto table =
      ThreadFabric::from(world)->join("inproc", group, [&] { return std::make_shared<ChannelTable>(group.size()); });
  return std::make_unique<Inproc>(world, group, std::static_pointer_cast<ChannelTable>(table));
}

}  // namespace esp::net
