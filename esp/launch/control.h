// Control channel between a launcher and one rank. After a rank failure the launcher uses it to send the rendezvous of
// the next round to the surviving ranks.
//
// A rank that lost a peer closes its communicators and sends `waiting`. A rank started as a replacement sends `ready`
// when it is about to join. When all ranks have reported, the launcher sends the next round to the waiting ranks. Every
// rank sends `formed` once it has a communicator again. If the launcher gives up, it sends a NextRound with proceed =
// false, and the rank ends with its own error.
//
// Transport: a SOCK_SEQPACKET socket pair, which keeps message boundaries. The rank reads end of file when the launcher
// dies. Used by one thread.
#pragma once

#include <optional>
#include <string>

#include "esp/base/clock.h"
#include "esp/launch/environment.h"
#include "esp/net/rendezvous.h"
#include "esp/net/socket.h"

namespace esp::launch {

// Sent by the launcher: the rendezvous of the next round. With proceed = false there is no next round.
struct NextRound {
  bool proceed = true;
  int round = 0;
  std::string job, store;
};
std::string encode(const NextRound& next);
NextRound parse_next_round(const std::string& text);  // throws IoError

// How a rank that is in `round` reacts to a NextRound message: it stops (there is no next round), joins the round, or
// ignores the message (it is about an earlier round).
enum class NextRoundAction { stop, join, ignore };
NextRoundAction next_round_action(const NextRound& next, int round);

// A message from a rank. `round` is the rank's current round (in `waiting` and `resumed`) or the round it joins (in
// `ready` and `formed`). `text` is set only in `resumed`: a log line such as "resumed at step 7 from snapshot".
struct RankMessage {
  enum class Kind { waiting, ready, formed, resumed } kind = Kind::waiting;
  int round = 0;
  std::string text = {};
};
std::string encode(const RankMessage& message);
std::optional<RankMessage> parse_rank_message(const std::string& text);

class ControlChannel {
 public:
  // Opens the rank's end of the channel, whose descriptor is in ESPALIER_CONTROL_FD. Empty if the variable is not set.
  // UsageError if the descriptor is not open.
  static std::optional<ControlChannel> from(const Environment& environment);
  explicit ControlChannel(int fd, int round) : line_(fd), round_(round) {}

  int round() const { return round_; }
  void send(RankMessage::Kind kind, const std::string& text = "");
  // Sends `waiting` and waits for the next round. Returns empty if the deadline passes or the launcher gives up.
  // Otherwise round() is then the returned round.
  std::optional<NextRound> await_next_round(Deadline deadline);

 private:
  net::Socket line_;
  int round_ = 0;
};

}  // namespace esp::launch
