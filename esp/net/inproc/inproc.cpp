#include "esp/net/inproc/inproc.h"

#include <sched.h>

#include <array>
#include <atomic>
#include <mutex>

#include "esp/base/check.h"
#include "esp/net/inproc/fabric.h"
#include "esp/net/posted.h"

namespace esp::net {
namespace {

constexpr size_t kRing = 16;                 // announcements under way per pair; more wait in the sender's queue
constexpr size_t kPiece = size_t{64} << 10;  // handed to `apply` at once: stays in the inner caches

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

// What the members of one group share. Channels are made when first used: most pairs of a large group never talk.
class Meeting {
 public:
  explicit Meeting(int size)
      : size_(static_cast<size_t>(size)),
        bells_(std::make_unique<Doorbell[]>(size_)),
        channels_(std::make_unique<std::atomic<Channel*>[]>(size_ * size_)) {}
  ~Meeting() {
    for (size_t i = 0; i < size_ * size_; ++i) delete channels_[i].load();
  }
  Meeting(const Meeting&) = delete;
  Meeting& operator=(const Meeting&) = delete;

  Doorbell& bell(int rank) { return bells_[static_cast<size_t>(rank)]; }

  Channel& channel(int from, int to) {
    std::atomic<Channel*>& place = channels_[static_cast<size_t>(from) * size_ + static_cast<size_t>(to)];
    if (Channel* made = place.load(std::memory_order_acquire)) return *made;
    std::lock_guard lock(making_);
    if (!place.load(std::memory_order_relaxed)) place.store(new Channel, std::memory_order_release);
    return *place.load(std::memory_order_relaxed);
  }

 private:
  const size_t size_;
  std::unique_ptr<Doorbell[]> bells_;
  std::mutex making_;  // held while a channel is made
  std::unique_ptr<std::atomic<Channel*>[]> channels_;
};

class Inproc final : public Posted {
 public:
  Inproc(const World& world, const Group& group, std::shared_ptr<Meeting> meeting)
      : Posted(world, group), meeting_(std::move(meeting)), lanes_(group.members.size()) {
    hang(meeting_->bell(rank()));
  }
  ~Inproc() override {
    unhang();
    abandon();
  }

  std::string_view name() const override { return "inproc"; }

 protected:
  bool push(int peer) override {
    Lane& lane = lanes_[static_cast<size_t>(peer)];
    if (!lane.out) lane.out = &meeting_->channel(rank(), peer);
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
      meeting_->bell(peer).ring();
      moved = true;
    }
    return moved;
  }

  bool pull(int peer) override {
    Lane& lane = lanes_[static_cast<size_t>(peer)];
    if (!lane.in) lane.in = &meeting_->channel(peer, rank());
    bool moved = false;
    while (Transfer* transfer = in_[static_cast<size_t>(peer)].first) {
      Announcement& announcement = slot(*lane.in, lane.consumed);
      Phase expected = Phase::posted;
      if (!announcement.phase.compare_exchange_strong(expected, Phase::taking)) break;
      if (announcement.tag != transfer->tag || announcement.bytes != transfer->bytes) {
        announcement.phase.store(Phase::posted);  // not taken: the sender must not believe that it arrived
        mismatch(peer, announcement.tag, announcement.bytes);
        return true;
      }
      take(*transfer, announcement.data);
      announcement.phase.store(Phase::taken, std::memory_order_seq_cst);
      ++lane.consumed;
      meeting_->bell(peer).ring();
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

  void withdraw(int peer) noexcept override {
    Lane& lane = lanes_[static_cast<size_t>(peer)];
    for (; lane.acknowledged != lane.announced; ++lane.acknowledged) {
      std::atomic<Phase>& phase = slot(*lane.out, lane.acknowledged).phase;
      for (Phase expected = Phase::posted; !phase.compare_exchange_weak(expected, Phase::withdrawn);) {
        if (expected == Phase::taken) break;
        expected = Phase::posted;
        sched_yield();  // being taken: as long as it takes to consume one message
      }
    }
  }

 private:
  struct Lane {
    Channel* out = nullptr;
    Channel* in = nullptr;
    uint64_t announced = 0, acknowledged = 0;  // of out
    uint64_t consumed = 0;                     // of in
    Transfer* last_announced = nullptr;        // valid while announced != acknowledged
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
      deliver(transfer, data + transfer.moved, std::min(kPiece, transfer.bytes - transfer.moved));
  }

  std::shared_ptr<Meeting> meeting_;
  std::vector<Lane> lanes_;  // by peer
};

}  // namespace

bool inproc_reaches(const World& world, int a, int b) {
  return ThreadFabric::of(world) != nullptr && world.same_process(a, b);
}

std::unique_ptr<Transport> open_inproc(const World& world, const Group& group) {
  auto meeting =
      ThreadFabric::of(world)->join("inproc", group, [&] { return std::make_shared<Meeting>(group.size()); });
  return std::make_unique<Inproc>(world, group, std::static_pointer_cast<Meeting>(meeting));
}

}  // namespace esp::net
