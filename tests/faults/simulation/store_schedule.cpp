// Clients of one store: HubCore and ClientCore, and what each client saw held against one order of all that was done.
#include <algorithm>
#include <functional>
#include <set>

#include <fmt/format.h>

#include "esp/net/store/client_core.h"
#include "tests/faults/simulation/schedules.h"
#include "tests/faults/simulation/truth.h"

namespace esp::sim {
namespace {

constexpr int kKeys = 2;
constexpr int kCallsOfAClient = 6;
constexpr Time kNever = INT64_MAX;

// One call on one key, as its client saw it. One that was never answered may have been done, or not, at any later time.
struct Call {
  net::Kind kind = net::Kind::set;
  std::string given;  // set: the value
  int64_t delta = 0;  // add
  Time begun = 0, ended = kNever;
  std::optional<std::string> saw;  // try_get, get, add
  bool absent = false;             // try_get
  bool refused = false;            // add to what is no number
};

using Value = std::optional<std::string>;

// What the key holds after the call, or nothing when the call cannot have seen what it saw.
std::optional<Value> done(const Call& call, const Value& before) {
  const bool answered = call.ended != kNever;
  switch (call.kind) {
    case net::Kind::set:
      return Value(call.given);
    case net::Kind::erase:
      return Value();
    case net::Kind::add: {
      const bool number =
          !before || std::all_of(before->begin(), before->end(), [](char c) { return c >= '0' && c <= '9'; });
      if (!number) return !answered || call.refused ? std::optional<Value>(before) : std::nullopt;
      const std::string sum = std::to_string((before ? std::stoll(*before) : 0) + call.delta);
      if (answered && (call.refused || call.saw != sum)) return std::nullopt;
      return Value(sum);
    }
    default:  // get, try_get
      if (answered && (call.absent ? before.has_value() : before != call.saw)) return std::nullopt;
      return before;
  }
}

// Whether the calls fit an order in which none comes before one that had ended when it began (Wing and Gong 1993).
bool fits(const std::vector<Call>& calls) {
  std::set<std::pair<uint64_t, std::string>> seen;
  const std::function<bool(uint64_t, const Value&)> from = [&](uint64_t taken, const Value& value) {
    Time soonest = kNever;
    bool all = true;
    for (size_t i = 0; i < calls.size(); ++i)
      if (!(taken >> i & 1)) {
        soonest = std::min(soonest, calls[i].ended);
        all = all && calls[i].ended == kNever;
      }
    if (all) return true;  // whoever got no answer need not have been heard
    if (!seen.emplace(taken, value ? "=" + *value : "").second) return false;
    for (size_t i = 0; i < calls.size(); ++i) {
      if (taken >> i & 1 || calls[i].begun > soonest) continue;
      if (const auto after = done(calls[i], value); after && from(taken | uint64_t{1} << i, *after)) return true;
    }
    return false;
  };
  return from(0, {});
}

class StoreSchedule {
 public:
  StoreSchedule(uint64_t seed, bool stale_reads, bool told)
      : told_(told),
        stale_reads_(stale_reads),
        simulation_(seed),
        truth_(simulation_, 1, 1),
        host_(simulation_.start_process()) {
    hub_ = std::make_unique<VirtualHub>(simulation_, truth_, host_, 64, "store", Broken{});
    const int64_t num_clients = simulation_.random.between(2, 4);
    for (int64_t i = 0; i < num_clients; ++i) come(static_cast<int>(i));
    const int64_t num_faults = simulation_.random.below(5);
    for (int64_t i = 0; i < num_faults; ++i)
      simulation_.at(simulation_.random.below(60 * kMs), nullptr, [this] { strike(); });
  }

  Outcome run() {
    while (simulation_.step() && simulation_.now() < 100 * kSecond) ++outcome_.num_events;
    for (int key = 0; key < kKeys; ++key)
      if (!fits(calls_[key]))
        truth_.broken("the store: no order of the {} calls on key {} fits what their clients saw", calls_[key].size(),
                      key);
    for (const auto& client : clients_)
      if (client->process->alive && !client->idle && !client->broken)
        truth_.broken("the store: a call was never answered, and its connection never closed");
    outcome_.broken = truth_.broken();
    outcome_.finished = true;
    outcome_.virtual_ms = simulation_.now() / kMs;
    if (told_) tell();
    return outcome_;
  }

 private:
  struct Client {
    ProcessPtr process;
    LinkPtr link;
    net::ClientCore core;
    net::ClientCore::Slot slot;
    net::FrameWriter writer;
    int num_calls = 0, key = 0;
    size_t call = 0;
    bool idle = true, broken = false;
  };

  void come(int number) {
    auto client = std::make_unique<Client>();
    Client* const it = client.get();
    it->process = simulation_.start_process();
    it->link = simulation_.connect(it->process, host_);
    it->link->sides[0].on_bytes = [this, it](std::string_view bytes) {
      it->core.received(bytes);
      look(*it);
    };
    it->link->sides[0].on_closed = [it] { it->broken = true; };
    hub_->accept(it->link, {net::Role::store, number, "store", 0, 0});
    clients_.push_back(std::move(client));
    next(*it);
  }

  void next(Client& client) {
    if (client.num_calls++ >= kCallsOfAClient) return;
    simulation_.at(simulation_.now() + simulation_.random.between(0, 3 * kMs), client.process,
                   [this, &client] { call(client); });
  }

  void call(Client& client) {
    if (client.broken) return;
    static constexpr net::Kind kKinds[] = {net::Kind::set,   net::Kind::try_get, net::Kind::add, net::Kind::add,
                                           net::Kind::erase, net::Kind::try_get, net::Kind::set};
    client.key = static_cast<int>(simulation_.random.below(kKeys));
    const std::string key = fmt::format("key {}", client.key);
    Call call;
    call.kind = kKinds[simulation_.random.below(std::size(kKinds))];
    call.begun = simulation_.now();
    std::string body = net::encode_key(key);
    if (call.kind == net::Kind::set) {
      call.given = simulation_.random.chance(0.5) ? fmt::format("{}", simulation_.random.below(100))
                                                  : fmt::format("word {}", ++num_words_);
      body = net::encode_key_value(key, call.given);
    } else if (call.kind == net::Kind::add) {
      call.delta = simulation_.random.between(1, 9);
      body = net::encode_addition(key, call.delta);
    }
    client.slot = {};
    client.idle = false;
    client.call = calls_[client.key].size();
    calls_[client.key].push_back(call);
    client.core.expect(client.writer.next_sequence(), &client.slot);
    simulation_.send(client.link, 0, client.writer.encode(call.kind, body));
  }

  void look(Client& client) {
    if (client.idle || !client.slot.done) return;
    client.idle = true;
    Call& call = calls_[client.key][client.call];
    call.ended = simulation_.now();
    if (client.slot.kind == net::Kind::value) {
      call.saw = client.slot.rest;
      if (stale_reads_ && call.kind == net::Kind::try_get)
        call.saw = std::exchange(last_seen_[client.key], client.slot.rest);
    }
    call.absent = client.slot.kind == net::Kind::absent;
    call.refused = client.slot.kind == net::Kind::refused;
    next(client);
  }

  void strike() {
    Client& client = *clients_[static_cast<size_t>(simulation_.random.below(static_cast<int64_t>(clients_.size())))];
    const int64_t draw = simulation_.random.below(4);
    if (draw == 0) {
      ++outcome_.faults["client killed"];
      simulation_.end(client.process);
    } else if (draw == 1) {
      ++outcome_.faults["connection reset"];
      simulation_.reset(client.link);
    } else if (draw == 2) {
      ++outcome_.faults["client stopped"];
      simulation_.stop(client.process, simulation_.random.below(50 * kMs));
    } else {
      ++outcome_.faults["parted"];
      simulation_.part(client.process, host_, simulation_.random.below(9 * kSecond));
    }
  }

  void tell() const {
    for (int key = 0; key < kKeys; ++key)
      for (const Call& call : calls_[key])
        fmt::print(stderr, "key {}: kind {} given «{}» +{} from {} to {}: {}\n", key, static_cast<int>(call.kind),
                   call.given, call.delta, call.begun, call.ended == kNever ? -1 : call.ended,
                   call.saw ? *call.saw : (call.absent ? "(absent)" : (call.refused ? "(refused)" : "-")));
  }

  const bool told_, stale_reads_;
  Outcome outcome_;
  Simulation simulation_;
  Truth truth_;
  const ProcessPtr host_;
  std::unique_ptr<VirtualHub> hub_;
  std::vector<std::unique_ptr<Client>> clients_;
  std::vector<Call> calls_[kKeys];
  std::string last_seen_[kKeys];
  int num_words_ = 0;
};

}  // namespace

Outcome run_store(uint64_t seed, bool stale_reads, bool told) {
  return StoreSchedule(seed, stale_reads, told).run();
}

}  // namespace esp::sim
