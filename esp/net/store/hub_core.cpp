// HubCore: connections and the key-value store. Membership and the failure detector are in hub_membership.cpp.
#include "esp/net/store/hub_core.h"

#include <charconv>

#include <fmt/format.h>

namespace esp::net {
namespace {

constexpr size_t kEntryBytes = 128;  // overhead of the map per key

size_t cost_of(const std::string& key, const std::string& value) {
  return key.size() + value.size() + kEntryBytes;
}

}  // namespace

HubCore::HubCore(int size, HubInfo hub_info, Log log, Send send, Drop drop, HubCoreOptions options)
    : hub_info_(std::move(hub_info)),
      log_(std::move(log)),
      send_(std::move(send)),
      drop_(std::move(drop)),
      members_(static_cast<size_t>(size)),
      options_(std::move(options)) {}

void HubCore::send(int id, FrameKind kind, std::string_view body) {
  if (auto found = connections_.find(id); found != connections_.end())
    send_(id, found->second.writer.encode(kind, body));
}

void HubCore::reply(int id, FrameKind kind, uint64_t request, std::string_view rest) {
  send(id, kind, encode_store_reply(request, rest));
}

void HubCore::refuse(int id, uint64_t request, bool usage, const std::string& why) {
  reply(id, FrameKind::refused, request, encode_request_error({usage, why}));
}

void HubCore::opened(int id, const HandshakeRequest& request) {
  connections_[id].request = request;
  // The rank has left or is lost, so its new connection may be meant for the next Hub at this address. The Hub closes
  // it without a reply, and the caller retries.
  auto state = is_rank(request.rank) ? members_[static_cast<size_t>(request.rank)].state : State::absent;
  bool gone = state == State::lost || state == State::left;
  if (gone || request.role == Role::data) {
    log_.debug("{} {} is refused: {}", options_.member, request.rank,
               gone ? "it has left or is lost" : "data connections do not go to the rendezvous server");
    drop_(id);
  } else if (request.role == Role::store) {
    send(id, FrameKind::hub_info, encode_hub_info(hub_info_));
  } else {
    open_detector(id);
  }
}

void HubCore::received(int id, std::string_view bytes) {
  auto found = connections_.find(id);
  if (found == connections_.end()) return;
  Connection& connection = found->second;
  connection.reader.append(bytes);
  try {
    while (auto frame = connection.reader.next())
      connection.request.role == Role::store ? serve_store(id, *frame) : serve_detector(id, *frame);
  } catch (const CommError& error) {
    log_.warn("closing the connection of {} {}: {}", options_.member, connection.request.rank, error.what());
    drop_(id);
  }
}

void HubCore::closed(int id) {
  auto node = connections_.extract(id);
  if (node.empty()) return;
  for (const auto& [request, key] : node.mapped().waiting_gets) {
    auto& waiters = waiting_[key];
    waiters.erase({id, request});
    if (waiters.empty()) waiting_.erase(key);
  }
  int rank = node.mapped().request.rank;
  if (!is_rank(rank)) return;
  Member& member = members_[static_cast<size_t>(rank)];
  if (id != member.store_id && id != member.detector_id) return;
  if (id == member.detector_id) member.detector_id = -1;
  if (sizes_differ_) return;  // the Hub has already sent the reason to the rank
  if (member.state == State::present) lose(rank, "closed its connection");
}

void HubCore::serve_store(int id, const Frame& frame) {
  uint64_t request = frame.sequence;
  switch (frame.kind) {
    case FrameKind::set:
      return set(id, request, decode_key_value(frame.body));
    case FrameKind::get:
      return get(id, request, decode_key(frame.body), true);
    case FrameKind::try_get:
      return get(id, request, decode_key(frame.body), false);
    case FrameKind::add:
      return add(id, request, decode_add_request(frame.body));
    case FrameKind::erase:
      erase(decode_key(frame.body));
      return reply(id, FrameKind::done, request);
    case FrameKind::cancel:
      return cancel(id, decode_number(frame.body));
    case FrameKind::join:
      return join(id, request, decode_join_request(frame.body));
    case FrameKind::list_missing:
      return reply(id, FrameKind::value, request, missing_ranks());
    default:
      throw CommError(CommError::Kind::corrupt, -1,
                      fmt::format("store connection: got frame kind {}; expected a kind that ranks send",
                                  static_cast<int>(frame.kind)));
  }
}

void HubCore::set(int id, uint64_t request, KeyValue pair) {
  if (store_value(pair.key, std::move(pair.value))) return reply(id, FrameKind::done, request);
  refuse(id, request, false, fmt::format("rendezvous store: full; its limit is {} MiB", kMaxStoreBytes >> 20));
}

// Stores a value and replies to all waiting gets of the key. Returns false if the store is full.
bool HubCore::store_value(const std::string& key, std::string value) {
  auto found = values_.find(key);
  size_t before = found == values_.end() ? 0 : cost_of(key, found->second);
  size_t after = stored_bytes_ - before + cost_of(key, value);
  if (after > kMaxStoreBytes) return false;
  stored_bytes_ = after;
  const std::string& kept = values_.insert_or_assign(key, std::move(value)).first->second;
  auto waiters = waiting_.extract(key);
  if (waiters.empty()) return true;
  for (auto [id, request] : waiters.mapped()) {
    connections_.at(id).waiting_gets.erase(request);
    reply(id, FrameKind::value, request, kept);
  }
  return true;
}

void HubCore::get(int id, uint64_t request, const std::string& key, bool wait) {
  auto found = values_.find(key);
  if (found != values_.end()) return reply(id, FrameKind::value, request, found->second);
  if (!wait) return reply(id, FrameKind::not_found, request);
  Connection& connection = connections_.at(id);
  if (connection.waiting_gets.size() >= kMaxWaitingGets)
    return refuse(id, request, false, fmt::format("store connection: more than {} gets are waiting", kMaxWaitingGets));
  connection.waiting_gets.emplace(request, key);
  waiting_[key].insert({id, request});
}

void HubCore::cancel(int id, uint64_t request) {
  auto waiting_gets = connections_.at(id).waiting_gets.extract(request);
  if (waiting_gets.empty()) return;  // the Hub has already replied to the get
  auto& waiters = waiting_[waiting_gets.mapped()];
  waiters.erase({id, request});
  if (waiters.empty()) waiting_.erase(waiting_gets.mapped());
}

void HubCore::add(int id, uint64_t request, const AddRequest& add_request) {
  int64_t sum = 0;
  if (auto found = values_.find(add_request.key); found != values_.end()) {
    const std::string& text = found->second;
    auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), sum);
    if (error != std::errc() || end != text.data() + text.size())
      return refuse(id, request, true,
                    fmt::format("rendezvous store: a counter holds {} bytes that are not a number", text.size()));
  }
  if (__builtin_add_overflow(sum, add_request.delta, &sum))
    return refuse(id, request, true, "rendezvous store: a counter would overflow");
  std::string text = std::to_string(sum);
  if (!store_value(add_request.key, text))
    return refuse(id, request, false, fmt::format("rendezvous store: full; its limit is {} MiB", kMaxStoreBytes >> 20));
  reply(id, FrameKind::value, request, text);
}

void HubCore::erase(const std::string& key) {
  auto found = values_.extract(key);
  if (!found.empty()) stored_bytes_ -= cost_of(found.key(), found.mapped());
}

}  // namespace esp::net
