#include "esp/net/failure_detector_core.h"

#include <algorithm>
#include <optional>

#include <fmt/format.h>

namespace esp::net {
namespace {

// After the exit of a local peer the detector waits this long for the Hub's reply, then declares the rank lost.
constexpr auto kHubReplyTimeout = std::chrono::milliseconds(100);

}  // namespace

FailureDetectorCore::FailureDetectorCore(int rank, int hub_rank, Duration heartbeat,
                                         std::shared_ptr<PeerStatus> peer_status, const Log& log, Callbacks callbacks,
                                         Clock::time_point now)
    : rank_(rank),
      hub_rank_(hub_rank),
      heartbeat_(heartbeat),
      peer_status_(std::move(peer_status)),
      log_(log),
      callbacks_(std::move(callbacks)),
      next_beat_(now + heartbeat) {}

void FailureDetectorCore::received(std::string_view bytes) {
  try {
    reader_.append(bytes);
    while (auto frame = reader_.next()) on_frame(*frame);
  } catch (const CommError& error) {
    on_hub_closed(fmt::format("sent invalid data: {}", error.what()));
  }
}

void FailureDetectorCore::on_frame(const Frame& frame) {
  switch (frame.kind) {
    case FrameKind::lost: {
      RankFailure failure = decode_rank_failure(frame.body);
      log_.debug("the rendezvous server reports: rank {} {}", failure.rank, failure.how);
      return peer_status_->mark_lost(failure.rank, failure.how);
    }
    case FrameKind::left: {
      int rank = decode_rank(frame.body);
      std::erase_if(exited_peers_, [&](const ExitedPeer& each) { return each.rank == rank; });
      return peer_status_->mark_left(rank);
    }
    case FrameKind::aborted: {
      AbortMessage abort = decode_abort(frame.body);
      return peer_status_->abort(abort.group, abort.cause);
    }
    case FrameKind::position_query: {
      PositionReport report = decode_position_report(frame.body);
      report.position = callbacks_.position(report.group);
      return callbacks_.post(FrameKind::position_reply, encode_position_report(report));
    }
    case FrameKind::position:
      return callbacks_.on_position(decode_position_report(frame.body));
    case FrameKind::bye_ack:
      bye_acknowledged_ = true;
      return;
    case FrameKind::hub_closing:
      hub_closing_ = true;
      return;
    default:
      throw CommError(
          CommError::Kind::corrupt, -1,
          fmt::format(
              "failure detector connection: got frame kind {}; expected a kind that the rendezvous server sends",
              static_cast<int>(frame.kind)));
  }
}

// A process on this host has exited. Only the Hub knows whether its rank left in order: the Hub reports `left` before
// it acknowledges the rank's bye. If the Hub does not answer in time, tick() declares the rank lost.
void FailureDetectorCore::on_local_peer_exit(int rank, Clock::time_point now, bool exited_before_start) {
  if (peer_status_->has_left(rank) || peer_status_->is_lost(rank)) return;
  exited_peers_.push_back({rank, now + kHubReplyTimeout});
  if (!exited_before_start) callbacks_.post(FrameKind::query_rank, encode_number(static_cast<uint64_t>(rank)));
}

void FailureDetectorCore::tick(Clock::time_point now) {
  for (const ExitedPeer& each : exited_peers_)
    if (now >= each.deadline && !peer_status_->has_left(each.rank))
      peer_status_->mark_lost(each.rank, "was killed or ended early");
  std::erase_if(exited_peers_,
                [&](const ExitedPeer& each) { return now >= each.deadline || peer_status_->is_lost(each.rank); });
  if (now < next_beat_) return;
  next_beat_ = now + heartbeat_;
  if (!hub_gone_) callbacks_.post(FrameKind::heartbeat, {});
}

Clock::time_point FailureDetectorCore::next_tick() const {
  auto soonest = next_beat_;
  for (const ExitedPeer& each : exited_peers_) soonest = std::min(soonest, each.deadline);
  return soonest;
}

void FailureDetectorCore::on_hub_closed(const std::string& how) {
  hub_gone_ = true;
  if (hub_closing_ || bye_acknowledged_) return;
  std::optional<int> other;
  if (hub_rank_ >= 0 && hub_rank_ != rank_) other = hub_rank_;
  const std::string hub = hub_rank_ >= 0 ? fmt::format("rank {}", hub_rank_) : "the launcher";
  peer_status_->fail_all(CommError(CommError::Kind::lost, hub_rank_, fmt::format("{} {}", hub, how)), other, how);
}

}  // namespace esp::net
