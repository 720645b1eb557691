#include "esp/net/mixed/mixed.h"

#include <algorithm>
#include <deque>

#include "esp/base/check.h"
#include "esp/base/rng.h"

namespace esp::net {
namespace {

constexpr Duration kFirstTurn = std::chrono::microseconds(20);
constexpr Duration kLongestTurn = std::chrono::microseconds(500);

// A transfer passed on. The copy is what the row's transport holds.
struct Passed {
  Transfer* original = nullptr;
  Transfer copy;
};

// One row's transport and what is under way on it.
struct Part {
  std::unique_ptr<Transport> transport;
  std::vector<Passed*> under_way;
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
    Part* part = nullptr;
    int rank = -1;  // of the peer inside the part
  };

  void open_part(const TransportRow& row, uint64_t number, const World& world);
  void post(Transfer& transfer, bool sends);
  bool bring_back(Part& part);

  std::deque<Part> parts_;  // stay put
  std::vector<Route> routes_;
  std::deque<Passed> pool_;  // stay put
  std::vector<Passed*> spare_;
  size_t turn_ = 0;
  Duration turn_length_ = kFirstTurn;
};

Mixed::Mixed(std::span<const TransportRow> rows, const World& world, const Group& group)
    : Transport(world, group), routes_(group.members.size()) {
  for (size_t i = 0; i < rows.size(); ++i) open_part(rows[i], i, world);
  for (int peer = 0; peer < size(); ++peer)
    ESP_CHECK(peer == rank() || routes_[static_cast<size_t>(peer)].part, "no transport reaches member {}", peer);
}

// Reaching is mutual and passes on (who shares memory with my neighbour shares it with me), so all members of a part
// come to the same list, and to the same answer whether it is needed: some pair in it that no earlier row serves.
void Mixed::open_part(const TransportRow& row, uint64_t number, const World& world) {
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
  Part& part = parts_.emplace_back();
  part.transport = row.open(world, within);
  for (int inside = 0; inside < within.size(); ++inside) {
    Route& route = routes_[static_cast<size_t>(peers[static_cast<size_t>(inside)])];
    if (!route.part && inside != within.rank) route = {&part, inside};
  }
}

void Mixed::post(Transfer& transfer, bool sends) {
  ESP_CHECK(transfer.peer >= 0 && transfer.peer < size() && transfer.peer != rank(), "peer {}", transfer.peer);
  Route& route = routes_[static_cast<size_t>(transfer.peer)];
  Passed* passed = nullptr;
  if (spare_.empty()) {
    passed = &pool_.emplace_back();
  } else {
    passed = spare_.back();
    spare_.pop_back();
  }
  transfer.state = Transfer::State::posted;
  *passed = {&transfer, transfer};
  passed->copy.peer = route.rank;
  sends ? route.part->transport->send(passed->copy) : route.part->transport->receive(passed->copy);
  route.part->under_way.push_back(passed);
}

// Takes over what ended, and the traffic of those peers.
bool Mixed::bring_back(Part& part) {
  auto ended = std::partition(part.under_way.begin(), part.under_way.end(),
                              [](Passed* passed) { return passed->copy.state == Transfer::State::posted; });
  bool any = ended != part.under_way.end();
  for (auto at = ended; at != part.under_way.end(); ++at) {
    Passed& passed = **at;
    Transfer& original = *passed.original;
    original.moved = passed.copy.moved;
    original.got = passed.copy.got;
    original.got_bytes = passed.copy.got_bytes;
    original.state = passed.copy.state;
    traffic_[static_cast<size_t>(original.peer)] = part.transport->traffic(passed.copy.peer);
    spare_.push_back(&passed);
  }
  part.under_way.erase(ended, part.under_way.end());
  return any;
}

bool Mixed::poll() {
  check_fate();
  bool moved = false;
  try {
    for (Part& part : parts_) {
      if (part.under_way.empty()) continue;
      moved |= part.transport->poll();
      moved |= bring_back(part);
    }
  } catch (...) {
    abandon();
    throw;
  }
  if (moved) turn_length_ = kFirstTurn;
  return moved;
}

void Mixed::sleep(Deadline deadline) {
  auto busy = [](const Part& part) { return !part.under_way.empty(); };
  auto num_busy = std::count_if(parts_.begin(), parts_.end(), busy);
  if (num_busy != 1) deadline = deadline.earlier(turn_length_);
  Part* chosen = &parts_.front();
  for (size_t tries = 0; tries < parts_.size(); ++tries) {
    chosen = &parts_[turn_++ % parts_.size()];
    if (busy(*chosen)) break;
  }
  turn_length_ = std::min(turn_length_ * 2, kLongestTurn);
  try {
    chosen->transport->sleep(deadline);
  } catch (...) {
    abandon();
    throw;
  }
  check_fate();
}

void Mixed::abandon() noexcept {
  for (Part& part : parts_) {
    part.transport->abandon();
    part.under_way.clear();
  }
}

}  // namespace

std::unique_ptr<Transport> open_mixed(std::span<const TransportRow> rows, const World& world, const Group& group) {
  return std::make_unique<Mixed>(rows, world, group);
}

}  // namespace esp::net
