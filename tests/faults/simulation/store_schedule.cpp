// Simulates clients of one store (HubCore and StoreClientCore) and checks that their calls on each key are
// linearizable.
#include <algorithm>
#include <functional>
#include <set>

#include <fmt/format.h>

#include "esp/net/store/store_client_core.h"
#include "tests/faults/simulation/invariant_checker.h"
#include "tests/faults/simulation/schedules.h"

namespace esp::sim {
namespace {

constexpr int kKeys = 2;
constexpr int kMaxCallsPerClient = 6;
constexpr Time kNever = INT64_MAX;

// One call on one key, as observed by its client. A call without a reply may take effect at any later time, or never.
struct Call {
  net::FrameKind kind = net::FrameKind::set;
  std::string given;  // for set: the value to store
  int64_t delta = 0;  // for add: the number to add
  Time begun = 0, ended = kNever;
  std::optional<std::string> observed;  // for try_get, get and add: the value in the reply
  bool absent = false;                  // for try_get: the reply was "not found"
  bool refused = false;                 // for add: the reply was an error, because the value was not a number
};

using Value = std::optional<std::string>;

// The value of the key after the call; nothing if the observed result contradicts `before`.
std::optional<Value> apply(const Call& call, const Value& before) {
  const bool answered = call.ended != kNever;
  switch (call.kind) {
    case net::FrameKind::set:
      return Value(call.given);
    case net::FrameKind::erase:
      return Value();
    case net::FrameKind::add: {
      const bool number =
          !before || std::all_of(before->begin(), before->end(), [](char c) { return c >= '0' && c <= '9'; });
      if (!number) return !answered || call.refused ? std::optional<Value>(before) : std::nullopt;
      const std::string sum = std::to_string((before ? std::stoll(*before) : 0) + call.delta);
      if (answered && (call.refused || call.observed != sum)) return std::nullopt;
      return Value(sum);
    }
    default:  // for get and try_get
      if (answered && (call.absent ? before.has_value() : before != call.observed)) return std::nullopt;
      return before;
  }
}

// True if the calls can be put into an order that explains all replies, and in which a call that ended before another
// began comes first (Wing and Gong 1993).
bool is_linearizable(const std::vector<Call>& calls) {
  std::set<std::pair<uint64_t, std::string>> seen;
  const std::function<bool(uint64_t, const Value&)> from = [&](uint64_t taken, const Value& value) {
    Time soonest = kNever;
    bool all = true;
    for (size_t i = 0; i < calls.size(); ++i)
      if (!(taken >> i & 1)) {
        soonest = std::min(soonest, calls[i].ended);
        all = all && calls[i].ended == kNever;
      }
    if (all) return true;  // the remaining calls have no reply, so they may have had no effect
    if (!seen.emplace(taken, value ? "=" + *value : "").second) return false;
    for (size_t i = 0; i < calls.size(); ++i) {
      if (taken >> i & 1 || calls[i].begun > soonest) continue;
      if (const auto after = apply(calls[i], value); after && from(taken | uint64_t{1} << i, *after)) return true;
    }
    return false;
  };
  return from(0, {});
}

class StoreSchedule {
 public:
  StoreSchedule(uint64_t seed, bool stale_reads, bool verbose)
      : verbose_(verbose),
        stale_reads_(stale_reads),
        simulation_(seed),
        invariants_(simulation_, 1, 1),
        host_(simulation_.start_process()) {
    hub_ = std::make_unique<VirtualHub>(simulation_, invariants_, host_, 64, "store", InjectedBugs{});
    const int64_t num_clients = simulation_.random.between(2, 4);
    for (int64_t i = 0; i < num_clients; ++i) connect_client(static_cast<int>(i));
    const int64_t num_faults = simulation_.random.below(5);
    for (int64_t i = 0; i < num_faults; ++i)
      simulation_.at(simulation_.random.below(60 * kMs), nullptr, [this] { inject_fault(); });
  }

  ScheduleResult run() {
    while (simulation_.step() && simulation_.now() < 100 * kSecond) ++outcome_.num_events;
    for (int key = 0; key < kKeys; ++key)
      if (!is_linearizable(calls_[key]))
        invariants_.violation(
            "the store: no order of the {} calls on key {} explains the replies that their clients received",
            calls_[key].size(), key);
    for (const auto& client : clients_)
      if (client->process->alive && !client->idle && !client->broken)
        invariants_.violation("the store: a call received no reply, although its connection did not close");
    outcome_.violation = invariants_.violation();
    outcome_.finished = true;
    outcome_.virtual_ms = simulation_.now() / kMs;
    if (verbose_) print_calls();
    return outcome_;
  }

 private:
  struct Client {
    ProcessPtr process;
    LinkPtr link;
    net::StoreClientCore core;
    net::StoreClientCore::Slot slot;
    net::FrameWriter writer;
    int num_calls = 0, key = 0;
    size_t call = 0;
    bool idle = true, broken = false;
  };

  void connect_client(int number) {
    auto client = std::make_unique<Client>();
    Client* const it = client.get();
    it->process = simulation_.start_process();
    it->link = simulation_.connect(it->process, host_);
    it->link->sides[0].on_bytes = [this, it](std::string_view bytes) {
      it->core.received(bytes);
      read_reply(*it);
    };
    it->link->sides[0].on_closed = [it] { it->broken = true; };
    hub_->accept(it->link, {net::Role::store, number, "store", 0, 0});
    clients_.push_back(std::move(client));
    schedule_call(*it);
  }

  void schedule_call(Client& client) {
    if (client.num_calls++ >= kMaxCallsPerClient) return;
    simulation_.at(simulation_.now() + simulation_.random.between(0, 3 * kMs), client.process,
                   [this, &client] { call(client); });
  }

  void call(Client& client) {
    if (client.broken) return;
    static constexpr net::FrameKind kKinds[] = {net::FrameKind::set, net::FrameKind::try_get, net::FrameKind::add,
                                                net::FrameKind::add, net::FrameKind::erase,   net::FrameKind::try_get,
                                                net::FrameKind::set};
    client.key = static_cast<int>(simulation_.random.below(kKeys));
    const std::string key = fmt::format("key {}", client.key);
    Call call;
    call.kind = kKinds[simulation_.random.below(std::size(kKinds))];
    call.begun = simulation_.now();
    std::string body = net::encode_key(key);
    if (call.kind == net::FrameKind::set) {
      call.given = simulation_.random.chance(0.5) ? fmt::format("{}", simulation_.random.below(100))
                                                  : fmt::format("word {}", ++num_words_);
      body = net::encode_key_value(key, call.given);
    } else if (call.kind == net::FrameKind::add) {
      call.delta = simulation_.random.between(1, 9);
      body = net::encode_add_request(key, call.delta);
    }
    client.slot = {};
    client.idle = false;
    client.call = calls_[client.key].size();
    calls_[client.key].push_back(call);
    client.core.expect(client.writer.next_sequence(), &client.slot);
    simulation_.send(client.link, 0, client.writer.encode(call.kind, body));
  }

  void read_reply(Client& client) {
    if (client.idle || !client.slot.done) return;
    client.idle = true;
    Call& call = calls_[client.key][client.call];
    call.ended = simulation_.now();
    if (client.slot.kind == net::FrameKind::value) {
      call.observed = client.slot.rest;
      if (stale_reads_ && call.kind == net::FrameKind::try_get)
        call.observed = std::exchange(last_seen_[client.key], client.slot.rest);
    }
    call.absent = client.slot.kind == net::FrameKind::not_found;
    call.refused = client.slot.kind == net::FrameKind::refused;
    schedule_call(client);
  }

  void inject_fault() {
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
      ++outcome_.faults["partitioned"];
      simulation_.partition(client.process, host_, simulation_.random.below(9 * kSecond));
    }
  }

  void print_calls() const {
    for (int key = 0; key < kKeys; ++key)
      for (const Call& call : calls_[key])
        fmt::print(stderr, "key {}: kind {} given «{}» +{} from {} to {}: {}\n", key, static_cast<int>(call.kind),
                   call.given, call.delta, call.begun, call.ended == kNever ? -1 : call.ended,
                   call.observed ? *call.observed : (call.absent ? "(absent)" : (call.refused ? "(refused)" : "-")));
  }

  const bool verbose_, stale_reads_;
  ScheduleResult outcome_;
  Simulation simulation_;
  InvariantChecker invariants_;
  const ProcessPtr host_;
  std::unique_ptr<VirtualHub> hub_;
  std::vector<std::unique_ptr<Client>> clients_;
  std::vector<Call> calls_[kKeys];
  std::string last_seen_[kKeys];
  int num_words_ = 0;
};

}  // namespace

ScheduleResult run_store(uint64_t seed, bool stale_reads, bool verbose) {
  return StoreSchedule(seed, stale_reads, verbose).run();
}

}  // namespace esp::sim
