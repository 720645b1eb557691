// HubCore: membership of ranks and the failure detector (joins, rank failures, aborts, position queries).
#include <algorithm>
#include <utility>

#include <fmt/format.h>

#include "esp/net/store/hub_core.h"

namespace esp::net {
namespace {

// Formats ascending numbers as ranges: «0-2, 5».
std::string format_ranges(const std::vector<int>& numbers) {
  std::string text;
  for (size_t i = 0; i < numbers.size();) {
    size_t last = i;
    while (last + 1 < numbers.size() && numbers[last + 1] == numbers[last] + 1) ++last;
    if (!text.empty()) text += ", ";
    text += last == i ? fmt::format("{}", numbers[i]) : fmt::format("{}-{}", numbers[i], numbers[last]);
    i = last + 1;
  }
  return text;
}

}  // namespace

void HubCore::join(int id, uint64_t request, const JoinRequest& join) {
  int size = static_cast<int>(members_.size());
  auto reject = [&](const std::string& why) { refuse(id, request, true, why); };
  if (join.rank != connections_.at(id).request.rank)
    return reject(fmt::format("join request: got {0} {2}; expected {0} {1}, as in the handshake", options_.member,
                              connections_.at(id).request.rank, join.rank));
  if (sizes_differ_ || join.size != size) {
    reported_.push_back({join.rank, join.size, id, request});
    if (complete_) return reject(describe_sizes());
    sizes_differ_ = true;
    return;
  }
  if (!is_rank(join.rank))
    return reject(fmt::format("{0}: got {1}; expected 0 to {2}", options_.member, join.rank, size - 1));
  Member& member = members_[static_cast<size_t>(join.rank)];
  if (member.state != State::absent)
    return reject(fmt::format("{0} {1}: already joined from process {2} on host {3}. Give every {0} a unique number",
                              options_.member, join.rank, member.peer.pid, host_name(member.peer.host)));
  if (failed_ && !complete_) return refuse(id, request, false, missing_ranks());
  reported_.push_back({join.rank, join.size, id, request});
  member = {State::present, join.peer, id, -1, request, {}};
  if (++num_joined_ == size) complete_joins();
}

// For each reported world size, the ranks that reported it.
std::map<int, std::set<int>> HubCore::reported_sizes() const {
  std::map<int, std::set<int>> ranks;
  for (const ReportedSize& report : reported_) ranks[report.size].insert(report.rank);
  return ranks;
}

std::string HubCore::describe_sizes() const {
  std::string text;
  if (hub_info_.hub_rank < 0) text = fmt::format("the launcher says {}", members_.size());
  for (const auto& [size, ranks] : reported_sizes())
    text += fmt::format("{}{}{} {} {} {}", text.empty() ? "" : ", ", options_.member, ranks.size() == 1 ? "" : "s",
                        format_ranges({ranks.begin(), ranks.end()}), ranks.size() == 1 ? "says" : "say", size);
  return options_.member == "rank"
             ? fmt::format("world size: {}. Start every rank with the same WORLD_SIZE", text)
             : fmt::format("number of {0}s: {1}. Start every {0} with the same --nnodes", options_.member, text);
}

bool HubCore::all_sizes_known() const {
  size_t largest = members_.size(), known = 0;
  for (const auto& [size, ranks] : reported_sizes()) {
    largest = std::max(largest, static_cast<size_t>(size));
    known += ranks.size();
  }
  return known >= largest;
}

void HubCore::reject_sizes() {
  const std::string text = describe_sizes();
  for (ReportedSize& report : reported_)
    if (!std::exchange(report.rejected, true)) refuse(report.id, report.request, true, text);
}

void HubCore::complete_joins() {
  complete_ = true;
  std::vector<Peer> peers;
  for (const Member& member : members_) peers.push_back(member.peer);
  std::string table = encode_table(peers);
  for (const Member& member : members_) reply(member.store_id, FrameKind::table, member.join_request, table);
}

std::string HubCore::missing_ranks() const {
  std::vector<int> missing;
  std::string lost;
  for (size_t rank = 0; rank < members_.size(); ++rank) {
    if (members_[rank].state == State::absent) missing.push_back(static_cast<int>(rank));
    if (members_[rank].state == State::lost)
      lost += fmt::format("; {} {} {}", options_.member, rank, members_[rank].how);
  }
  return fmt::format("{} of {} {}s joined{}{}{}", num_joined_, members_.size(), options_.member,
                     missing.empty() ? "" : "; missing: ", format_ranges(missing), lost);
}

void HubCore::check_links(const std::function<Duration(int id)>& unanswered_time) {
  // Longest silence per host. Every host starts at zero, so that a host that answers again is also reported.
  std::map<std::string, Duration> silences;
  for (const auto& [host, state] : hosts_) silences[host] = Duration::zero();
  std::vector<std::tuple<int, int, std::string>> silent;  // connection id, rank, host
  for (const auto& [id, connection] : connections_) {
    const Duration silence = unanswered_time(id);
    if (silence == Duration::zero() || !is_rank(connection.request.rank)) continue;
    const Member& member = members_[static_cast<size_t>(connection.request.rank)];
    const std::string host = host_name(member.peer.host);
    if (member.state == State::present) silences[host] = std::max(silences[host], silence);
    if (silence >= options_.link_timeout) silent.emplace_back(id, connection.request.rank, host);
  }
  for (const auto& [host, silence] : silences)
    hosts_.try_emplace(host, host, options_.link_timeout).first->second.update(silence, log_);
  for (const auto& [id, rank, host] : silent) {
    if (members_[static_cast<size_t>(rank)].state == State::present)
      lose(rank, fmt::format("is lost: {}", hosts_.at(host).text()));
    drop_(id);
  }
}

void HubCore::open_detector(int id) {
  int rank = connections_.at(id).request.rank;
  if (!is_rank(rank) || members_[static_cast<size_t>(rank)].state != State::present ||
      members_[static_cast<size_t>(rank)].detector_id >= 0) {
    log_.debug("failure detector connection of {} {} refused: it has not joined, has left, or has one already",
               options_.member, rank);
    return drop_(id);
  }
  members_[static_cast<size_t>(rank)].detector_id = id;
  // Sends the events that happened before this failure detector connected.
  for (const std::string& abort : std::exchange(members_[static_cast<size_t>(rank)].undelivered_aborts, {}))
    send(id, FrameKind::aborted, abort);
  for (size_t other = 0; other < members_.size(); ++other) {
    const Member& member = members_[other];
    if (member.state == State::lost)
      send(id, FrameKind::lost, encode_rank_failure({static_cast<int>(other), member.how}));
    if (member.state == State::left) send(id, FrameKind::left, encode_number(other));
  }
}

void HubCore::serve_detector(int id, const Frame& frame) {
  int rank = connections_.at(id).request.rank;
  // the connection was refused but is not closed yet
  if (!is_rank(rank) || members_[static_cast<size_t>(rank)].detector_id != id) return;
  switch (frame.kind) {
    case FrameKind::heartbeat:
      return;
    case FrameKind::bye:
      return leave(rank);
    case FrameKind::abort:
      return forward_abort(decode_abort(frame.body), rank);
    case FrameKind::query_positions:
      return forward_query(id, decode_position_query(frame.body), rank);
    case FrameKind::position_reply: {
      PositionReport report = decode_position_report(frame.body);
      if (!is_rank(report.rank)) return;
      int asker = members_[static_cast<size_t>(report.rank)].detector_id;
      report.rank = rank;
      return send(asker, FrameKind::position, encode_position_report(report));
    }
    case FrameKind::query_rank: {
      int other = decode_rank(frame.body);
      if (!is_rank(other)) return;
      const Member& member = members_[static_cast<size_t>(other)];
      if (member.state == State::lost) send(id, FrameKind::lost, encode_rank_failure({other, member.how}));
      if (member.state == State::left) send(id, FrameKind::left, encode_number(static_cast<uint64_t>(other)));
      return;
    }
    default:
      throw CommError(CommError::Kind::corrupt, -1,
                      fmt::format("failure detector connection: got frame kind {}; expected a kind that ranks send",
                                  static_cast<int>(frame.kind)));
  }
}

// All other ranks are notified before the leaving rank gets its acknowledgement. Otherwise a rank could see the process
// exit first and count it as a failure.
void HubCore::leave(int rank) {
  Member& member = members_[static_cast<size_t>(rank)];
  if (member.state == State::present) {
    member.state = State::left;
    broadcast(FrameKind::left, encode_number(static_cast<uint64_t>(rank)), rank);
  }
  send(member.detector_id, FrameKind::bye_ack, {});
}

void HubCore::lose(int rank, const std::string& how) {
  Member& member = members_[static_cast<size_t>(rank)];
  member.state = State::lost;
  member.how = how;
  failed_ = true;
  log_.debug("{} {} {}", options_.member, rank, how);
  broadcast(FrameKind::lost, encode_rank_failure({rank, how}), rank);
  if (complete_) return;
  // Without the lost rank the table of peers can no longer become complete: refuse all waiting joins with the reason.
  for (Member& other : members_)
    if (other.state == State::present)
      refuse(other.store_id, other.join_request, false,
             fmt::format("{} {} {} during the rendezvous", options_.member, rank, how));
}

void HubCore::broadcast(FrameKind kind, std::string_view body, int except) {
  for (size_t rank = 0; rank < members_.size(); ++rank)
    if (members_[rank].detector_id >= 0 && static_cast<int>(rank) != except)
      send(members_[rank].detector_id, kind, body);
}

void HubCore::forward_abort(const AbortMessage& abort, int from) {
  failed_ = true;
  std::string body = encode_abort({abort.group, {}, abort.cause});
  for (int rank : abort.members) {
    if (!is_rank(rank) || rank == from) continue;
    Member& member = members_[static_cast<size_t>(rank)];
    if (member.detector_id >= 0)
      send(member.detector_id, FrameKind::aborted, body);
    else if (member.state == State::present && member.undelivered_aborts.size() < kMaxUndeliveredAborts)
      member.undelivered_aborts.push_back(body);  // the rank has joined, but its failure detector has not connected yet
  }
}

void HubCore::forward_query(int id, const PositionQuery& query, int asker) {
  for (int rank : query.members) {
    if (!is_rank(rank) || rank == asker) continue;
    const Member& member = members_[static_cast<size_t>(rank)];
    // A rank that is not present will not reply; the Hub replies at once instead.
    if (member.state != State::present || member.detector_id < 0)
      send(id, FrameKind::position, encode_position_report({query.id, query.group, rank, {}}));
    else
      send(member.detector_id, FrameKind::position_query, encode_position_report({query.id, query.group, asker, {}}));
  }
}

void HubCore::announce_closing() {
  broadcast(FrameKind::hub_closing, {});
}

bool HubCore::finished() const {
  if (sizes_differ_)
    return all_sizes_known() &&
           std::ranges::all_of(reported_, [](const ReportedSize& report) { return report.rejected; });
  if (!complete_) return true;
  for (size_t rank = 0; rank < members_.size(); ++rank)
    if (members_[rank].state == State::present && static_cast<int>(rank) != hub_info_.hub_rank) return false;
  return true;
}

}  // namespace esp::net
