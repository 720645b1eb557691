// The roll of ranks and the watch: the half of HubCore that knows who is there.
#include <algorithm>
#include <utility>

#include <fmt/format.h>

#include "esp/net/store/hub_core.h"

namespace esp::net {
namespace {

// «0-2, 5» of ascending numbers.
std::string numbers_of(const std::vector<int>& numbers) {
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

void HubCore::join(int id, uint64_t request, const Join& join) {
  int size = static_cast<int>(members_.size());
  auto no = [&](const std::string& why) { refuse(id, request, true, why); };
  if (join.rank != links_.at(id).hello.rank)
    return no(fmt::format("{0} {1} joined as {0} {2}", options_.member, links_.at(id).hello.rank, join.rank));
  if (sizes_differ_ || join.size != size) {
    claims_.push_back({join.rank, join.size, id, request});
    if (complete_) return no(sizes_in_words());
    sizes_differ_ = true;
    return;
  }
  if (!is_rank(join.rank))
    return no(fmt::format("{0} {1}: {0}s are numbered 0 to {2}", options_.member, join.rank, size - 1));
  Member& member = members_[static_cast<size_t>(join.rank)];
  if (member.state != State::absent)
    return no(fmt::format("{0} {1}: already joined from process {2} on host {3}. Give every {0} a number of its own",
                          options_.member, join.rank, member.peer.pid, host_name(member.peer.host)));
  if (faulty_ && !complete_) return refuse(id, request, false, roll());
  claims_.push_back({join.rank, join.size, id, request});
  member = {State::present, join.peer, id, -1, request, {}};
  if (++num_joined_ == size) complete_joins();
}

// By size, the ranks that claim it.
std::map<int, std::set<int>> HubCore::claimed_sizes() const {
  std::map<int, std::set<int>> ranks;
  for (const Claim& claim : claims_) ranks[claim.size].insert(claim.rank);
  return ranks;
}

std::string HubCore::sizes_in_words() const {
  std::string text;
  if (welcome_.hub_rank < 0) text = fmt::format("the launcher says {}", members_.size());
  for (const auto& [size, ranks] : claimed_sizes())
    text += fmt::format("{}{}{} {} {} {}", text.empty() ? "" : ", ", options_.member, ranks.size() == 1 ? "" : "s",
                        numbers_of({ranks.begin(), ranks.end()}), ranks.size() == 1 ? "says" : "say", size);
  return options_.member == "rank"
             ? fmt::format("world size: {}. Start every rank with the same WORLD_SIZE", text)
             : fmt::format("number of {0}s: {1}. Start every {0} with the same --nnodes", options_.member, text);
}

bool HubCore::all_sizes_known() const {
  size_t largest = members_.size(), known = 0;
  for (const auto& [size, ranks] : claimed_sizes()) {
    largest = std::max(largest, static_cast<size_t>(size));
    known += ranks.size();
  }
  return known >= largest;
}

void HubCore::tell_sizes() {
  const std::string text = sizes_in_words();
  for (Claim& claim : claims_)
    if (!std::exchange(claim.told, true)) refuse(claim.id, claim.request, true, text);
}

void HubCore::complete_joins() {
  complete_ = true;
  std::vector<Peer> peers;
  for (const Member& member : members_) peers.push_back(member.peer);
  std::string table = encode_table(peers);
  for (const Member& member : members_) reply(member.store_id, Kind::table, member.join_request, table);
}

std::string HubCore::roll() const {
  std::vector<int> missing;
  std::string lost;
  for (size_t rank = 0; rank < members_.size(); ++rank) {
    if (members_[rank].state == State::absent) missing.push_back(static_cast<int>(rank));
    if (members_[rank].state == State::lost)
      lost += fmt::format("; {} {} {}", options_.member, rank, members_[rank].how);
  }
  return fmt::format("{} of {} {}s came{}{}{}", num_joined_, members_.size(), options_.member,
                     missing.empty() ? "" : "; missing: ", numbers_of(missing), lost);
}

void HubCore::check_links(const std::function<Duration(int id)>& unanswered_for) {
  // Of a host, its longest silence; those that are known are looked at also when they answer.
  std::map<std::string, Duration> silences;
  for (const auto& [host, state] : hosts_) silences[host] = Duration::zero();
  std::vector<std::tuple<int, int, std::string>> silent;  // connection, rank, host
  for (const auto& [id, link] : links_) {
    const Duration silence = unanswered_for(id);
    if (silence == Duration::zero() || !is_rank(link.hello.rank)) continue;
    const Member& member = members_[static_cast<size_t>(link.hello.rank)];
    const std::string host = host_name(member.peer.host);
    if (member.state == State::present) silences[host] = std::max(silences[host], silence);
    if (silence >= options_.link_timeout) silent.emplace_back(id, link.hello.rank, host);
  }
  for (const auto& [host, silence] : silences)
    hosts_.try_emplace(host, host, options_.link_timeout).first->second.update(silence, log_);
  for (const auto& [id, rank, host] : silent) {
    if (members_[static_cast<size_t>(rank)].state == State::present)
      lose(rank, fmt::format("is lost: {}", hosts_.at(host).text()));
    drop_(id);
  }
}

void HubCore::open_watch(int id) {
  int rank = links_.at(id).hello.rank;
  if (!is_rank(rank) || members_[static_cast<size_t>(rank)].state != State::present ||
      members_[static_cast<size_t>(rank)].watch_id >= 0) {
    log_.debug("the watch of {} {} is refused: it has not joined, has left, or has one already", options_.member, rank);
    return drop_(id);
  }
  members_[static_cast<size_t>(rank)].watch_id = id;
  // What it would have heard had it been here before.
  for (const std::string& abort : std::exchange(members_[static_cast<size_t>(rank)].unheard, {}))
    send(id, Kind::aborted, abort);
  for (size_t other = 0; other < members_.size(); ++other) {
    const Member& member = members_[other];
    if (member.state == State::lost) send(id, Kind::lost, encode_loss({static_cast<int>(other), member.how}));
    if (member.state == State::left) send(id, Kind::left, encode_number(other));
  }
}

void HubCore::serve_watch(int id, const Frame& frame) {
  int rank = links_.at(id).hello.rank;
  if (!is_rank(rank) || members_[static_cast<size_t>(rank)].watch_id != id) return;  // refused, not yet closed
  switch (frame.kind) {
    case Kind::beat:
      return;
    case Kind::bye:
      return leave(rank);
    case Kind::abort:
      return pass_on(decode_abort(frame.body), rank);
    case Kind::ask:
      return put_question(id, decode_ask(frame.body), rank);
    case Kind::standing: {
      Report report = decode_report(frame.body);
      if (!is_rank(report.rank)) return;
      int asker = members_[static_cast<size_t>(report.rank)].watch_id;
      report.rank = rank;
      return send(asker, Kind::answer, encode_report(report));
    }
    case Kind::query: {
      int other = decode_rank(frame.body);
      if (!is_rank(other)) return;
      const Member& member = members_[static_cast<size_t>(other)];
      if (member.state == State::lost) send(id, Kind::lost, encode_loss({other, member.how}));
      if (member.state == State::left) send(id, Kind::left, encode_number(static_cast<uint64_t>(other)));
      return;
    }
    default:
      throw CommError(CommError::Kind::corrupt, -1, "a frame that does not belong on a watch connection");
  }
}

// Everybody else is told before the leaver is answered, so that none sees its process end and takes it for lost.
void HubCore::leave(int rank) {
  Member& member = members_[static_cast<size_t>(rank)];
  if (member.state == State::present) {
    member.state = State::left;
    tell_watches(Kind::left, encode_number(static_cast<uint64_t>(rank)), rank);
  }
  send(member.watch_id, Kind::bye_heard, {});
}

void HubCore::lose(int rank, const std::string& how) {
  Member& member = members_[static_cast<size_t>(rank)];
  member.state = State::lost;
  member.how = how;
  faulty_ = true;
  log_.debug("{} {} {}", options_.member, rank, how);
  tell_watches(Kind::lost, encode_loss({rank, how}), rank);
  if (complete_) return;
  // The table can no longer become complete: whoever waits for it hears why.
  for (Member& other : members_)
    if (other.state == State::present)
      refuse(other.store_id, other.join_request, false,
             fmt::format("{} {} {} while the others came", options_.member, rank, how));
}

void HubCore::tell_watches(Kind kind, std::string_view body, int except) {
  for (size_t rank = 0; rank < members_.size(); ++rank)
    if (members_[rank].watch_id >= 0 && static_cast<int>(rank) != except) send(members_[rank].watch_id, kind, body);
}

void HubCore::pass_on(const Abort& abort, int from) {
  faulty_ = true;
  std::string body = encode_abort({abort.group, {}, abort.cause});
  for (int rank : abort.members) {
    if (!is_rank(rank) || rank == from) continue;
    Member& member = members_[static_cast<size_t>(rank)];
    if (member.watch_id >= 0)
      send(member.watch_id, Kind::aborted, body);
    else if (member.state == State::present && member.unheard.size() < kMaxUnheard)
      member.unheard.push_back(body);  // it has joined and its watch is on its way
  }
}

void HubCore::put_question(int id, const Ask& ask, int asker) {
  for (int rank : ask.members) {
    if (!is_rank(rank) || rank == asker) continue;
    const Member& member = members_[static_cast<size_t>(rank)];
    // Who is gone will not answer; saying so spares the asker the wait.
    if (member.state != State::present || member.watch_id < 0)
      send(id, Kind::answer, encode_report({ask.id, ask.group, rank, {}}));
    else
      send(member.watch_id, Kind::question, encode_report({ask.id, ask.group, asker, {}}));
  }
}

void HubCore::announce_closing() {
  tell_watches(Kind::closing, {});
}

bool HubCore::finished() const {
  if (sizes_differ_)
    return all_sizes_known() && std::ranges::all_of(claims_, [](const Claim& claim) { return claim.told; });
  if (!complete_) return true;
  for (size_t rank = 0; rank < members_.size(); ++rank)
    if (members_[rank].state == State::present && static_cast<int>(rank) != welcome_.hub_rank) return false;
  return true;
}

}  // namespace esp::net
