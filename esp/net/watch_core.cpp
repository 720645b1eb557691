#include "esp/net/watch_core.h"

#include <algorithm>
#include <optional>

#include <fmt/format.h>

namespace esp::net {
namespace {

constexpr auto kWordFromHub = std::chrono::milliseconds(100);  // after a neighbour's end, before we judge ourselves

}  // namespace

WatchCore::WatchCore(int rank, int hub_rank, Duration heartbeat, std::shared_ptr<Fate> fate, const Log& log,
                     Owner owner, Clock::time_point now)
    : rank_(rank),
      hub_rank_(hub_rank),
      heartbeat_(heartbeat),
      fate_(std::move(fate)),
      log_(log),
      owner_(std::move(owner)),
      next_beat_(now + heartbeat) {}

void WatchCore::received(std::string_view bytes) {
  try {
    reader_.append(bytes);
    while (auto frame = reader_.next()) heed(*frame);
  } catch (const CommError& error) {
    hub_closed(fmt::format("sent what cannot be read: {}", error.what()));
  }
}

void WatchCore::heed(const Frame& frame) {
  switch (frame.kind) {
    case Kind::lost: {
      Loss loss = decode_loss(frame.body);
      log_.debug("the hub says: rank {} {}", loss.rank, loss.how);
      return fate_->lose(loss.rank, loss.how);
    }
    case Kind::left: {
      int rank = decode_rank(frame.body);
      std::erase_if(ended_, [&](const Ended& each) { return each.rank == rank; });
      return fate_->leave(rank);
    }
    case Kind::aborted: {
      Abort abort = decode_abort(frame.body);
      return fate_->abort(abort.group, abort.cause);
    }
    case Kind::question: {
      Report report = decode_report(frame.body);
      report.standing = owner_.standing(report.group);
      return owner_.post(Kind::standing, encode_report(report));
    }
    case Kind::answer:
      return owner_.answered(decode_report(frame.body));
    case Kind::bye_heard:
      bye_heard_ = true;
      return;
    case Kind::closing:
      hub_closing_ = true;
      return;
    default:
      throw CommError(CommError::Kind::corrupt, -1, "a frame that does not belong on a watch connection");
  }
}

// The process has ended, and whether it had left in order the Hub knows: it told us before it answered the bye. Should
// the Hub be slow or gone, we say so ourselves a little later.
void WatchCore::neighbour_ended(int rank, Clock::time_point now, bool unasked) {
  if (fate_->left(rank) || fate_->lost(rank)) return;
  ended_.push_back({rank, now + kWordFromHub});
  if (!unasked) owner_.post(Kind::query, encode_number(static_cast<uint64_t>(rank)));
}

void WatchCore::tick(Clock::time_point now) {
  for (const Ended& each : ended_)
    if (now >= each.word_by && !fate_->left(each.rank)) fate_->lose(each.rank, "was killed or ended early");
  std::erase_if(ended_, [&](const Ended& each) { return now >= each.word_by || fate_->lost(each.rank); });
  if (now < next_beat_) return;
  next_beat_ = now + heartbeat_;
  if (!hub_gone_) owner_.post(Kind::beat, {});
}

Clock::time_point WatchCore::next_tick() const {
  auto soonest = next_beat_;
  for (const Ended& each : ended_) soonest = std::min(soonest, each.word_by);
  return soonest;
}

void WatchCore::hub_closed(const std::string& how) {
  hub_gone_ = true;
  if (hub_closing_ || bye_heard_) return;
  std::optional<int> other;
  if (hub_rank_ >= 0 && hub_rank_ != rank_) other = hub_rank_;
  const std::string hub = hub_rank_ >= 0 ? fmt::format("rank {}", hub_rank_) : "the launcher";
  fate_->doom(CommError(CommError::Kind::lost, hub_rank_, fmt::format("{} {}", hub, how)), other, how);
}

}  // namespace esp::net
