// The roll of ranks and the watch: the half of HubCore that knows who is there.
#include <utility>

#include <fmt/format.h>

#include "esp/net/store/hub_core.h"

namespace esp::net {

void HubCore::join(int id, uint64_t request, const Join& join) {
  int size = static_cast<int>(members_.size());
  auto no = [&](const std::string& why) { refuse(id, request, true, why); };
  if (join.size != size)
    return no(fmt::format("rank {} came with a world size of {}; the job has {}", join.rank, join.size, size));
  if (!is_rank(join.rank) || join.rank != links_.at(id).hello.rank)
    return no(fmt::format("rank {} is none of 0 to {} or not who it said it is", join.rank, size - 1));
  Member& member = members_[static_cast<size_t>(join.rank)];
  if (member.state != State::absent)
    return no(
        fmt::format("rank {} has already joined, from process {} on {}", join.rank, member.peer.pid, member.peer.host));
  if (faulty_ && !complete_) return refuse(id, request, false, roll());
  member = {State::present, join.peer, id, -1, request, {}};
  if (++num_joined_ == size) complete_joins();
}

void HubCore::complete_joins() {
  complete_ = true;
  std::vector<Peer> peers;
  for (const Member& member : members_) peers.push_back(member.peer);
  std::string table = encode_table(peers);
  for (const Member& member : members_) reply(member.store_id, Kind::table, member.join_request, table);
}

std::string HubCore::roll() const {
  std::string missing, lost;
  for (size_t rank = 0; rank < members_.size(); ++rank) {
    if (members_[rank].state == State::absent) missing += fmt::format("{}{}", missing.empty() ? "" : ", ", rank);
    if (members_[rank].state == State::lost) lost += fmt::format("; rank {} {}", rank, members_[rank].how);
  }
  return fmt::format("{} of {} ranks joined{}{}{}", num_joined_, members_.size(),
                     missing.empty() ? "" : "; missing: ", missing, lost);
}

void HubCore::open_watch(int id) {
  int rank = links_.at(id).hello.rank;
  if (!is_rank(rank) || members_[static_cast<size_t>(rank)].state != State::present ||
      members_[static_cast<size_t>(rank)].watch_id >= 0) {
    log_.debug("hub: a watch of rank {} is refused: it has not joined, has left, or has one already", rank);
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
  log_.debug("hub: rank {} {}", rank, how);
  tell_watches(Kind::lost, encode_loss({rank, how}), rank);
  if (complete_) return;
  // The table can no longer become complete: whoever waits for it hears why.
  for (Member& other : members_)
    if (other.state == State::present)
      refuse(other.store_id, other.join_request, false, fmt::format("rank {} {} during the rendezvous", rank, how));
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
  if (!complete_) return true;
  for (size_t rank = 0; rank < members_.size(); ++rank)
    if (members_[rank].state == State::present && static_cast<int>(rank) != welcome_.hub_rank) return false;
  return true;
}

}  // namespace esp::net
