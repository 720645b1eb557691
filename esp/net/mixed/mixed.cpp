#include "esp/net/mixed/mixed.h"

#include <algorithm>
#include <deque>

#include "esp/base/check.h"
#include "esp/base/rng.h"

namespace esp::net {
namespace {

constexpr Duration kFirstTurn = std::chrono::microseconds(20);
constexpr Duration kLongestTurn = std::chrono::microseconds(500);

// A caller's transfer and its copy, which the sub-transport moves.
struct ForwardedTransfer {
  Transfer* original = nullptr;
  Transfer copy;
};

// The transport of one row of the transport table, and the transfers in progress on it.
struct SubTransport {
  std::unique_ptr<Transport> transport;
  std::vector<ForwardedTransfer*> in_progress;
};

class Mixed final : public Transport {
 public:
  Mixed(std::span<const TransportRow> rows, const World& world, const Group& group);

  std::string_view name() const override { return "mixed"; }
  void send(Transfer& transfer) override { post(transfer, true); }
  void receive(Transfer& transfer) override { post(transfer, false); }
  bool poll() override;
  void sleep(Deadline deadline) override;
  void abandon() noexcept override;

 private:
  struct Route {
    SubTransport* sub = nullptr;
    int rank = -1;  // the peer's rank inside the sub-transport's group
  };

  void open_sub_transport(const TransportRow& row, uint64_t number, const World& world);
  void post(Transfer& transfer, bool sends);
  bool collect_finished(SubTransport& sub);

  std::deque<SubTransport> subs_;  // a deque, so that elements keep their addresses
  std::vector<Route> routes_;
  std::deque<ForwardedTransfer> pool_;  // a deque, so that elements keep their addresses
  std::vector<ForwardedTransfer*> spare_;
  size_t turn_ = 0;
  Duration turn_length_ = kFirstTurn;
};

Mixed::Mixed(std::span<const TransportRow> rows, const World& world, const Group& group)
    : Transport(world, group), routes_(group.members.size()) {
  for (size_t i = 0; i < rows.size(); ++i) open_sub_transport(rows[i], i, world);
  for (int peer = 0; peer < size(); ++peer)
    ESP_CHECK(peer == rank() || routes_[static_cast<size_t>(peer)].sub, "no transport connects member {}", peer);
}

// `reaches` is symmetric and transitive (for example: on one host). All members of a sub-group therefore compute the
// same member list. They also reach the same result on whether the row is needed: it is needed if no earlier row
// reaches some pair of its members.
void Mixed::open_sub_transport(const TransportRow& row, uint64_t number, const World& world) {
  Group within;
  std::vector<int> peers;
  bool needed = false;
  for (int peer = 0; peer < size(); ++peer) {
    int member = group_.members[static_cast<size_t>(peer)];
    if (!row.reaches(world, world.rank, member)) continue;
    if (peer == rank()) within.rank = within.size();
    within.members.push_back(member);
    peers.push_back(peer);
  }
  for (int a : within.members)
    for (int b : within.members) {
      if (a >= b) continue;
      std::span<const TransportRow> earlier(&row - number, number);
      needed |= std::none_of(earlier.begin(), earlier.end(),
                             [&](const TransportRow& other) { return other.reaches(world, a, b); });
    }
  if (!needed) return;
  within.id = random_bits(group_.id, number + 1, static_cast<uint64_t>(within.members.front()));
  SubTransport& sub = subs_.emplace_back();
  sub.transport = row.open(world, within);
  for (int inside = 0; inside < within.size(); ++inside) {
    Route& route = routes_[static_cast<size_t>(peers[static_cast<size_t>(inside)])];
    if (!route.sub && inside != within.rank) route = {&sub, inside};
  }
}

void Mixed::post(Transfer& transfer, bool sends) {
  ESP_CHECK(transfer.peer >= 0 && transfer.peer < size() && transfer.peer != rank(),
            "peer: got {}; expected another rank of the group", transfer.peer);
  Route& route = routes_[static_cast<size_t>(transfer.peer)];
  ForwardedTransfer* forwarded = nullptr;
  if (spare_.empty()) {
    forwarded = &pool_.emplace_back();
  } else {
    forwarded = spare_.back();
    spare_.pop_back();
  }
  transfer.state = Transfer::State::posted;
  *forwarded = {&transfer, transfer};
  forwarded->copy.peer = route.rank;
  sends ? route.sub->transport->send(forwarded->copy) : route.sub->transport->receive(forwarded->copy);
  route.sub->in_progress.push_back(forwarded);
}

// Copies the results of finished transfers back to the caller's transfers and updates the traffic counters of their
// peers.
bool Mixed::collect_finished(SubTransport& sub) {
  auto ended = std::partition(sub.in_progress.begin(), sub.in_progress.end(), [](ForwardedTransfer* forwarded) {
    return forwarded->copy.state == Transfer::State::posted;
  });
  bool any = ended != sub.in_progress.end();
  for (auto at = ended; at != sub.in_progress.end(); ++at) {
    ForwardedTransfer& forwarded = **at;
    Transfer& original = *forwarded.original;
    original.moved = forwarded.copy.moved;
    original.got = forwarded.copy.got;
    original.got_bytes = forwarded.copy.got_bytes;
    original.state = forwarded.copy.state;
    traffic_[static_cast<size_t>(original.peer)] = sub.transport->traffic(forwarded.copy.peer);
    spare_.push_back(&forwarded);
  }
  sub.in_progress.erase(ended, sub.in_progress.end());
  return any;
}

bool Mixed::poll() {
  check_peer_status();
  bool moved = false;
  try {
    for (SubTransport& sub : subs_) {
      if (sub.in_progress.empty()) continue;
      moved |= sub.transport->poll();
      moved |= collect_finished(sub);
    }
  } catch (...) {
    abandon();
    throw;
  }
  if (moved) turn_length_ = kFirstTurn;
  return moved;
}

void Mixed::sleep(Deadline deadline) {
  auto busy = [](const SubTransport& sub) { return !sub.in_progress.empty(); };
  auto num_busy = std::count_if(subs_.begin(), subs_.end(), busy);
  if (num_busy != 1) deadline = deadline.earlier(turn_length_);
  SubTransport* chosen = &subs_.front();
  for (size_t tries = 0; tries < subs_.size(); ++tries) {
    chosen = &subs_[turn_++ % subs_.size()];
    if (busy(*chosen)) break;
  }
  turn_length_ = std::min(turn_length_ * 2, kLongestTurn);
  try {
    chosen->transport->sleep(deadline);
  } catch (...) {
    abandon();
    throw;
  }
  check_peer_status();
}

void Mixed::abandon() noexcept {
  for (SubTransport& sub : subs_) {
    sub.transport->abandon();
    sub.in_progress.clear();
  }
}

}  // namespace

std::unique_ptr<Transport> open_mixed(std::span<const TransportRow> rows, const World& world, const Group& group) {
  return std::make_unique<Mixed>(rows, world, group);
}

}  // namespace esp::net
