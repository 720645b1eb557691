#include "esp/net/virtual/virtual.h"

#include <condition_variable>
#include <deque>
#include <mutex>

#include "esp/net/inproc/fabric.h"
#include "esp/net/queued_transport.h"
#include "esp/net/virtual/network.h"

namespace esp::net {
namespace {

// One send, visible to its receiver.
struct Offer {
  enum class Phase { posted, taking, taken };
  int to = -1;
  const std::byte* data = nullptr;
  size_t bytes = 0;
  Tag tag;
  int64_t ready_ps = 0, end_ps = 0;
  Phase phase = Phase::posted;
};

// Unfinished sends of one member, in issue order; the transfer of the first `num_matched` has begun.
struct OutPort {
  std::deque<Offer> offers;
  size_t num_matched = 0;
};

// State shared by the members of one group.
struct VirtualPorts {
  explicit VirtualPorts(int size)
      : out(static_cast<size_t>(size)), events(std::make_unique<FutexEvent[]>(static_cast<size_t>(size))) {}
  std::mutex mutex;  // guards `out`; a thread may lock the network's mutex while it holds this one
  std::condition_variable taken;
  std::vector<OutPort> out;
  std::unique_ptr<FutexEvent[]> events;
};

class Virtual final : public QueuedTransport {
 public:
  Virtual(const World& world, const Group& group, std::shared_ptr<VirtualNetwork> network,
          std::shared_ptr<VirtualPorts> ports)
      : QueuedTransport(world, group), network_(std::move(network)), ports_(std::move(ports)) {
    set_wakeup(ports_->events[static_cast<size_t>(rank())]);
  }
  ~Virtual() override {
    clear_wakeup();
    abandon();
  }

  std::string_view name() const override { return "virtual"; }
  bool ordered() const override { return true; }
  int64_t clock_ps() const override { return network_->clock_ps(world_.rank); }

 protected:
  void on_post(Transfer& transfer, bool sends) override {
    if (!sends) return expected_.push_back(&transfer);
    {
      std::lock_guard lock(ports_->mutex);
      mine().offers.push_back(
          {transfer.peer, transfer.data, transfer.bytes, transfer.tag, transfer.ready_ps, 0, Offer::Phase::posted});
      sends_.push_back(&transfer);
    }
    event(transfer.peer).notify();
  }

  // Finishes the sends that their receivers have consumed, to any peer, oldest first.
  bool push(int) override {
    std::lock_guard lock(ports_->mutex);
    bool moved = false;
    for (OutPort& port = mine(); !port.offers.empty() && port.offers.front().phase == Offer::Phase::taken;) {
      Transfer& transfer = *sends_.front();
      transfer.end_ps = port.offers.front().end_ps;
      network_->finished(world_.rank, transfer.end_ps);
      port.offers.pop_front();
      --port.num_matched;
      sends_.pop_front();
      finish_send(transfer.peer);
      moved = true;
    }
    return moved;
  }

  bool pull(int peer) override {
    bool moved = false;
    while (!expected_.empty() && expected_.front()->peer == peer) {
      Transfer& transfer = *expected_.front();
      Match match = begin(transfer);
      if (match.outcome == Match::Outcome::none) break;
      moved = true;
      expected_.pop_front();
      if (match.outcome == Match::Outcome::mismatched) {
        mismatch(peer, match.got, match.got_bytes);
        break;
      }
      take(transfer, *match.offer);
      finish_receive(peer);
    }
    return moved;
  }

  bool can_push(int) const override {
    std::lock_guard lock(ports_->mutex);
    const OutPort& port = ports_->out[static_cast<size_t>(rank())];
    return !port.offers.empty() && port.offers.front().phase == Offer::Phase::taken;
  }

  bool can_pull(int peer) const override {
    std::lock_guard lock(ports_->mutex);
    return !expected_.empty() && expected_.front()->peer == peer && oldest_for_me(peer) != nullptr;
  }

  void cancel_sends(int) noexcept override {
    std::unique_lock lock(ports_->mutex);
    OutPort& port = mine();
    // Waits until receivers have consumed the sends that have begun; this takes only as long as copying a message.
    ports_->taken.wait(lock, [&] {
      for (size_t i = 0; i < port.num_matched; ++i)
        if (port.offers[i].phase == Offer::Phase::taking) return false;
      return true;
    });
    port = {};
    sends_.clear();
    expected_.clear();
  }

 private:
  OutPort& mine() const { return ports_->out[static_cast<size_t>(rank())]; }
  FutexEvent& event(int peer) const { return ports_->events[static_cast<size_t>(peer)]; }

  // The peer's oldest send that has not begun, if its receiver is this rank; else null.
  Offer* oldest_for_me(int peer) const {
    OutPort& port = ports_->out[static_cast<size_t>(peer)];
    if (port.num_matched == port.offers.size()) return nullptr;
    Offer& oldest = port.offers[port.num_matched];
    return oldest.to == rank() ? &oldest : nullptr;
  }

  struct Match {
    enum class Outcome { none, mismatched, begun } outcome = Outcome::none;
    Offer* offer = nullptr;  // if begun: the send; valid until this rank marks it as taken
    Tag got;                 // if mismatched: the tag of the message
    size_t got_bytes = 0;
  };

  // Begins the message that this receive expects and computes its end time. A message that does not match stays in the
  // queue.
  Match begin(const Transfer& transfer) {
    Offer* offer = nullptr;
    int next_receiver = -1;
    {
      std::lock_guard lock(ports_->mutex);
      offer = oldest_for_me(transfer.peer);
      if (!offer) return {};
      if (offer->tag != transfer.tag || offer->bytes != transfer.bytes)
        return {Match::Outcome::mismatched, nullptr, offer->tag, offer->bytes};
      int from = group_.members[static_cast<size_t>(transfer.peer)];
      offer->end_ps = network_->carry(from, world_.rank, offer->bytes, std::max(offer->ready_ps, transfer.ready_ps));
      offer->phase = Offer::Phase::taking;
      OutPort& port = ports_->out[static_cast<size_t>(transfer.peer)];
      if (++port.num_matched < port.offers.size()) next_receiver = port.offers[port.num_matched].to;
    }
    if (next_receiver >= 0) event(next_receiver).notify();
    return {Match::Outcome::begun, offer, {}, 0};
  }

  void take(Transfer& transfer, Offer& offer) {
    deliver(transfer, offer.data, offer.bytes);
    transfer.end_ps = offer.end_ps;
    network_->finished(world_.rank, transfer.end_ps);
    {
      std::lock_guard lock(ports_->mutex);
      offer.phase = Offer::Phase::taken;
      ports_->taken.notify_all();
    }
    event(transfer.peer).notify();
  }

  const std::shared_ptr<VirtualNetwork> network_;
  const std::shared_ptr<VirtualPorts> ports_;
  std::deque<Transfer*> expected_;  // posted receives in issue order
  std::deque<Transfer*> sends_;     // posted sends in issue order, parallel to this member's offers
};

}  // namespace

bool virtual_reaches(const World& world, int a, int b) {
  return ThreadFabric::from(world) != nullptr && ThreadFabric::from(world)->network() != nullptr &&
         world.same_process(a, b);
}

std::unique_ptr<Transport> open_virtual(const World& world, const Group& group) {
  ThreadFabric& fabric = *ThreadFabric::from(world);
  auto ports = fabric.join("virtual", group, [&] { return std::make_shared<VirtualPorts>(group.size()); });
  return std::make_unique<Virtual>(world, group, fabric.network(), std::static_pointer_cast<VirtualPorts>(ports));
}

}  // namespace esp::net
