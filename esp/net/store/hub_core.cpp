// Connections and the store; ranks and the watch are in hub_roll.cpp.
#include "esp/net/store/hub_core.h"

#include <charconv>

#include <fmt/format.h>

namespace esp::net {
namespace {

constexpr size_t kEntryBytes = 128;  // what the map itself costs per key

size_t cost_of(const std::string& key, const std::string& value) {
  return key.size() + value.size() + kEntryBytes;
}

}  // namespace

HubCore::HubCore(int size, Welcome welcome, Log log, Send send, Drop drop, HubCoreOptions options)
    : welcome_(std::move(welcome)),
      log_(std::move(log)),
      send_(std::move(send)),
      drop_(std::move(drop)),
      members_(static_cast<size_t>(size)),
      options_(std::move(options)) {}

void HubCore::send(int id, Kind kind, std::string_view body) {
  if (auto found = links_.find(id); found != links_.end()) send_(id, found->second.writer.encode(kind, body));
}

void HubCore::reply(int id, Kind kind, uint64_t request, std::string_view rest) {
  send(id, kind, encode_reply(request, rest));
}

void HubCore::refuse(int id, uint64_t request, bool usage, const std::string& why) {
  reply(id, Kind::refused, request, encode_refusal({usage, why}));
}

void HubCore::opened(int id, const Hello& hello) {
  links_[id].hello = hello;
  // Who has left or was lost may mean the next hub at this address: it is closed without a word and calls again.
  auto state = is_rank(hello.rank) ? members_[static_cast<size_t>(hello.rank)].state : State::absent;
  bool gone = state == State::lost || state == State::left;
  if (gone || hello.role == Role::data) {
    log_.debug("{} {} is refused: {}", options_.member, hello.rank,
               gone ? "it is gone for good" : "no data goes through here");
    drop_(id);
  } else if (hello.role == Role::store) {
    send(id, Kind::welcome, encode_welcome(welcome_));
  } else {
    open_watch(id);
  }
}

void HubCore::received(int id, std::string_view bytes) {
  auto found = links_.find(id);
  if (found == links_.end()) return;
  Link& link = found->second;
  link.reader.append(bytes);
  try {
    while (auto frame = link.reader.next())
      link.hello.role == Role::store ? serve_store(id, *frame) : serve_watch(id, *frame);
  } catch (const CommError& error) {
    log_.warn("closing the connection of {} {}: {}", options_.member, link.hello.rank, error.what());
    drop_(id);
  }
}

void HubCore::closed(int id) {
  auto node = links_.extract(id);
  if (node.empty()) return;
  for (const auto& [request, key] : node.mapped().parked) {
    auto& waiters = waiting_[key];
    waiters.erase({id, request});
    if (waiters.empty()) waiting_.erase(key);
  }
  int rank = node.mapped().hello.rank;
  if (!is_rank(rank)) return;
  Member& member = members_[static_cast<size_t>(rank)];
  if (id != member.store_id && id != member.watch_id) return;
  if (id == member.watch_id) member.watch_id = -1;
  if (sizes_differ_) return;  // it has heard why
  if (member.state == State::present) lose(rank, "closed its connection");
}

void HubCore::serve_store(int id, const Frame& frame) {
  uint64_t request = frame.sequence;
  switch (frame.kind) {
    case Kind::set:
      return set(id, request, decode_key_value(frame.body));
    case Kind::get:
      return get(id, request, decode_key(frame.body), true);
    case Kind::try_get:
      return get(id, request, decode_key(frame.body), false);
    case Kind::add:
      return add(id, request, decode_addition(frame.body));
    case Kind::erase:
      erase(decode_key(frame.body));
      return reply(id, Kind::done, request);
    case Kind::cancel:
      return cancel(id, decode_number(frame.body));
    case Kind::join:
      return join(id, request, decode_join(frame.body));
    case Kind::roll:
      return reply(id, Kind::value, request, roll());
    default:
      throw CommError(CommError::Kind::corrupt, -1, "a frame that does not belong on a store connection");
  }
}

void HubCore::set(int id, uint64_t request, KeyValue pair) {
  if (keep(pair.key, std::move(pair.value))) return reply(id, Kind::done, request);
  refuse(id, request, false, fmt::format("what ranks tell each other exceeds {} MiB", kMaxStoreBytes >> 20));
}

// Stores a value and answers who waited for it; false when there is no room.
bool HubCore::keep(const std::string& key, std::string value) {
  auto found = values_.find(key);
  size_t before = found == values_.end() ? 0 : cost_of(key, found->second);
  size_t after = stored_bytes_ - before + cost_of(key, value);
  if (after > kMaxStoreBytes) return false;
  stored_bytes_ = after;
  const std::string& kept = values_.insert_or_assign(key, std::move(value)).first->second;
  auto waiters = waiting_.extract(key);
  if (waiters.empty()) return true;
  for (auto [id, request] : waiters.mapped()) {
    links_.at(id).parked.erase(request);
    reply(id, Kind::value, request, kept);
  }
  return true;
}

void HubCore::get(int id, uint64_t request, const std::string& key, bool wait) {
  auto found = values_.find(key);
  if (found != values_.end()) return reply(id, Kind::value, request, found->second);
  if (!wait) return reply(id, Kind::absent, request);
  Link& link = links_.at(id);
  if (link.parked.size() >= kMaxParked)
    return refuse(id, request, false, fmt::format("more than {} waits at once on one connection", kMaxParked));
  link.parked.emplace(request, key);
  waiting_[key].insert({id, request});
}

void HubCore::cancel(int id, uint64_t request) {
  auto parked = links_.at(id).parked.extract(request);
  if (parked.empty()) return;  // answered meanwhile
  auto& waiters = waiting_[parked.mapped()];
  waiters.erase({id, request});
  if (waiters.empty()) waiting_.erase(parked.mapped());
}

void HubCore::add(int id, uint64_t request, const Addition& addition) {
  int64_t sum = 0;
  if (auto found = values_.find(addition.key); found != values_.end()) {
    const std::string& text = found->second;
    auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), sum);
    if (error != std::errc() || end != text.data() + text.size())
      return refuse(
          id, request, true,
          fmt::format("cannot add to \"{}\": it holds {} bytes that are not a number", addition.key, text.size()));
  }
  if (__builtin_add_overflow(sum, addition.delta, &sum))
    return refuse(id, request, true, fmt::format("counter \"{}\" would overflow", addition.key));
  std::string text = std::to_string(sum);
  if (!keep(addition.key, text))
    return refuse(id, request, false, fmt::format("what ranks tell each other exceeds {} MiB", kMaxStoreBytes >> 20));
  reply(id, Kind::value, request, text);
}

void HubCore::erase(const std::string& key) {
  auto found = values_.extract(key);
  if (!found.empty()) stored_bytes_ -= cost_of(found.key(), found.mapped());
}

}  // namespace esp::net
