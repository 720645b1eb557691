// The line between a launcher and one rank beside its output: how survivors of a failure hear where the next round is.
//
// A rank that lost a peer closes its communicators and says `waiting`; one started in a dead rank's place says `ready`
// when it is about to join. When the launcher has heard from all, it tells those that wait where to meet, and all say
// `formed` once they have a communicator again. A launcher that will not go on says so, and the rank ends with its own
// error. Messages are whole (a socket pair of packets); the launcher's end closes with the launcher. One thread.
#pragma once

#include <optional>
#include <string>

#include "esp/base/clock.h"
#include "esp/launch/environment.h"
#include "esp/net/rendezvous.h"
#include "esp/net/socket.h"

namespace esp::launch {

// Where the ranks of a round meet, as the launcher tells it. `go_on` false: there is no next round.
struct NextRound {
  bool go_on = true;
  int round = 0;
  std::string job, store;
};
std::string text_of(const NextRound& next);
NextRound next_round_of(const std::string& text);  // IoError

// What the launcher's word means to a rank of `round`: there is no next one, come, or it is of a round already seen.
enum class Meaning { end, come, old };
Meaning meaning_of(const NextRound& next, int round);

// What a rank says, with the round it is in (waiting, resumed) or comes to (ready, formed). `text` of `resumed`: from
// what, for a person.
struct Word {
  enum class Kind { waiting, ready, formed, resumed } kind = Kind::waiting;
  int round = 0;
  std::string text = {};
};
std::string text_of(const Word& word);
std::optional<Word> word_of(const std::string& text);

class Control {
 public:
  // The rank's end, from ESPALIER_CONTROL_FD; null where the launcher offers none. UsageError when the descriptor is
  // not open.
  static std::optional<Control> from(const Environment& environment);
  explicit Control(int fd, int round) : line_(fd), round_(round) {}

  int round() const { return round_; }
  void say(Word::Kind kind, const std::string& text = "");
  // Says `waiting` and waits to be told; nothing at the deadline, or when the launcher will not go on. Moves on to the
  // round it returns.
  std::optional<NextRound> await(Deadline deadline);

 private:
  net::Socket line_;
  int round_ = 0;
};

}  // namespace esp::launch
