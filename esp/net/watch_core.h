// WatchCore: what a process's watch knows and decides, without a socket, a thread or a clock: what the Hub's words mean
// for this process's Fate, whom a neighbour's end makes lost and when, what a closed connection to the Hub says.
// net/hub_watch.h moves the bytes and waits; the simulation of faults does the same on a clock of its own. One thread.
#pragma once

#include <functional>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "esp/base/clock.h"
#include "esp/base/log.h"
#include "esp/net/fate.h"
#include "esp/net/store/frames.h"
#include "esp/net/store/messages.h"
#include "esp/net/watch.h"

namespace esp::net {

class WatchCore {
 public:
  struct Owner {
    std::function<void(Kind kind, std::string body)> post;  // to the Hub, in this order
    std::function<Standing(uint64_t group)> standing;       // where this rank stands
    std::function<void(const Report& report)> answered;     // where another does
  };
  WatchCore(int rank, int hub_rank, Duration heartbeat, std::shared_ptr<Fate> fate, const Log& log, Owner owner,
            Clock::time_point now);

  void received(std::string_view bytes);
  void hub_closed(const std::string& how);
  // A process on this host has ended; whether in order, the Hub knows best and is asked. `unasked`: before we began.
  void neighbour_ended(int rank, Clock::time_point now, bool unasked = false);
  // What is due by now: a beat, a judgement of those that ended.
  void tick(Clock::time_point now);
  Clock::time_point next_tick() const;

  bool hub_gone() const { return hub_gone_; }
  bool bye_heard() const { return bye_heard_; }

 private:
  struct Ended {
    int rank;
    Clock::time_point word_by;
  };
  void heed(const Frame& frame);

  const int rank_, hub_rank_;
  const Duration heartbeat_;
  const std::shared_ptr<Fate> fate_;
  const Log log_;
  const Owner owner_;
  FrameReader reader_{kMaxAnswerBytes};
  std::vector<Ended> ended_;
  bool hub_closing_ = false, hub_gone_ = false, bye_heard_ = false;
  Clock::time_point next_beat_;
};

}  // namespace esp::net
