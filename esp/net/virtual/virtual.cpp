#include "esp/net/virtual/virtual.h"

#include <condition_variable>
#include <deque>
#include <mutex>

#include "esp/net/inproc/fabric.h"
#include "esp/net/posted.h"
#include "esp/net/virtual/network.h"

namespace esp::net {
namespace {

// A send as its receiver sees it.
struct Offer {
  enum class Phase { posted, taking, taken };
  int to = -1;
  const std::byte* data = nullptr;
  size_t bytes = 0;
  Tag tag;
  int64_t ready_ps = 0, end_ps = 0;
  Phase phase = Phase::posted;
};

// The sends of one member that it has not finished yet, in the order issued; the first `num_matched` were begun.
struct OutPort {
  std::deque<Offer> offers;
  size_t num_matched = 0;
};

// What the members of one group share.
struct Meeting {
  explicit Meeting(int size)
      : out(static_cast<size_t>(size)), bells(std::make_unique<Doorbell[]>(static_cast<size_t>(size))) {}
  std::mutex mutex;  // guards out; the network's own lock is taken inside it
  std::condition_variable taken;
  std::vector<OutPort> out;
  std::unique_ptr<Doorbell[]> bells;
};

class Virtual final : public Posted {
 public:
  Virtual(const World& world, const Group& group, std::shared_ptr<VirtualNetwork> network,
          std::shared_ptr<Meeting> meeting)
      : Posted(world, group), network_(std::move(network)), meeting_(std::move(meeting)) {
    hang(meeting_->bells[static_cast<size_t>(rank())]);
  }
  ~Virtual() override {
    unhang();
    abandon();
  }

  std::string_view name() const override { return "virtual"; }
  bool ordered() const override { return true; }
  int64_t clock_ps() const override { return network_->clock_ps(world_.rank); }

 protected:
  void posted(Transfer& transfer, bool sends) override {
    if (!sends) return expected_.push_back(&transfer);
    {
      std::lock_guard lock(meeting_->mutex);
      mine().offers.push_back(
          {transfer.peer, transfer.data, transfer.bytes, transfer.tag, transfer.ready_ps, 0, Offer::Phase::posted});
      sends_.push_back(&transfer);
    }
    bell(transfer.peer).ring();
  }

  // Whatever was taken, to whichever peer, from the oldest on.
  bool push(int) override {
    std::lock_guard lock(meeting_->mutex);
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
      if (match.outcome == Match::Outcome::misfit) {
        mismatch(peer, match.got, match.got_bytes);
        break;
      }
      take(transfer, *match.offer);
      finish_receive(peer);
    }
    return moved;
  }

  bool can_push(int) const override {
    std::lock_guard lock(meeting_->mutex);
    const OutPort& port = meeting_->out[static_cast<size_t>(rank())];
    return !port.offers.empty() && port.offers.front().phase == Offer::Phase::taken;
  }

  bool can_pull(int peer) const override {
    std::lock_guard lock(meeting_->mutex);
    return !expected_.empty() && expected_.front()->peer == peer && oldest_for_me(peer) != nullptr;
  }

  void withdraw(int) noexcept override {
    std::unique_lock lock(meeting_->mutex);
    OutPort& port = mine();
    // Those begun are waited out: as long as it takes to consume a message.
    meeting_->taken.wait(lock, [&] {
      for (size_t i = 0; i < port.num_matched; ++i)
        if (port.offers[i].phase == Offer::Phase::taking) return false;
      return true;
    });
    port = {};
    sends_.clear();
    expected_.clear();
  }

 private:
  OutPort& mine() const { return meeting_->out[static_cast<size_t>(rank())]; }
  Doorbell& bell(int peer) const { return meeting_->bells[static_cast<size_t>(peer)]; }

  // The peer's oldest send not yet begun, when it is to this rank.
  Offer* oldest_for_me(int peer) const {
    OutPort& port = meeting_->out[static_cast<size_t>(peer)];
    if (port.num_matched == port.offers.size()) return nullptr;
    Offer& oldest = port.offers[port.num_matched];
    return oldest.to == rank() ? &oldest : nullptr;
  }

  struct Match {
    enum class Outcome { none, misfit, begun } outcome = Outcome::none;
    Offer* offer = nullptr;  // begun: stays put until this rank says it was taken
    Tag got;                 // misfit
    size_t got_bytes = 0;
  };

  // Begins the message this receive waits for and fixes its times. A message that does not fit stays unserved.
  Match begin(const Transfer& transfer) {
    Offer* offer = nullptr;
    int next_receiver = -1;
    {
      std::lock_guard lock(meeting_->mutex);
      offer = oldest_for_me(transfer.peer);
      if (!offer) return {};
      if (offer->tag != transfer.tag || offer->bytes != transfer.bytes)
        return {Match::Outcome::misfit, nullptr, offer->tag, offer->bytes};
      int from = group_.members[static_cast<size_t>(transfer.peer)];
      offer->end_ps = network_->carry(from, world_.rank, offer->bytes, std::max(offer->ready_ps, transfer.ready_ps));
      offer->phase = Offer::Phase::taking;
      OutPort& port = meeting_->out[static_cast<size_t>(transfer.peer)];
      if (++port.num_matched < port.offers.size()) next_receiver = port.offers[port.num_matched].to;
    }
    if (next_receiver >= 0) bell(next_receiver).ring();
    return {Match::Outcome::begun, offer, {}, 0};
  }

  void take(Transfer& transfer, Offer& offer) {
    deliver(transfer, offer.data, offer.bytes);
    transfer.end_ps = offer.end_ps;
    network_->finished(world_.rank, transfer.end_ps);
    {
      std::lock_guard lock(meeting_->mutex);
      offer.phase = Offer::Phase::taken;
      meeting_->taken.notify_all();
    }
    bell(transfer.peer).ring();
  }

  const std::shared_ptr<VirtualNetwork> network_;
  const std::shared_ptr<Meeting> meeting_;
  std::deque<Transfer*> expected_;  // receives in the order issued
  std::deque<Transfer*> sends_;     // beside this member's offers
};

}  // namespace

bool virtual_reaches(const World& world, int a, int b) {
  return ThreadFabric::of(world) != nullptr && ThreadFabric::of(world)->network() != nullptr &&
         world.same_process(a, b);
}

std::unique_ptr<Transport> open_virtual(const World& world, const Group& group) {
  ThreadFabric& fabric = *ThreadFabric::of(world);
  auto meeting = fabric.join("virtual", group, [&] { return std::make_shared<Meeting>(group.size()); });
  return std::make_unique<Virtual>(world, group, fabric.network(), std::static_pointer_cast<Meeting>(meeting));
}

}  // namespace esp::net
