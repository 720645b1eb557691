// Interprets the schedules of all ranks in one thread: each rank runs its actions strictly in order, sends are
// buffered, and a receive waits for its message. The caller defines the message type and the effects. Used by the
// validator and the replay.
#pragma once

#include <cstddef>
#include <deque>
#include <map>
#include <span>
#include <utility>
#include <vector>

#include "esp/comm/schedule.h"

namespace esp::comm {

template <typename Message>
class ScheduleInterpreter {
 public:
  explicit ScheduleInterpreter(std::span<const Schedule> schedules)
      : schedules_(schedules), next_(schedules.size(), 0) {}

  // Runs actions of all ranks as far as possible, up to and including round `last_round`.
  template <typename Send, typename Receive, typename Local>
  void run(int last_round, Send&& send, Receive&& receive, Local&& local) {
    std::vector<int> ready;
    for (int r = 0; r < static_cast<int>(schedules_.size()); ++r) ready.push_back(r);
    while (!ready.empty()) {
      int rank = ready.back();
      ready.pop_back();
      const std::vector<Action>& actions = schedules_[static_cast<size_t>(rank)].actions;
      for (size_t& i = next_[static_cast<size_t>(rank)]; i < actions.size() && actions[i].round <= last_round; ++i) {
        const Action& action = actions[i];
        if (action.type == ActionType::send) {
          channels_[{rank, action.peer}].push_back(send(rank, i));
          ready.push_back(action.peer);  // the peer may be waiting for this message
        } else if (action.type == ActionType::receive || action.type == ActionType::receive_reduce) {
          auto wire = channels_.find({action.peer, rank});
          if (wire == channels_.end() || wire->second.empty()) break;
          receive(rank, i, wire->second.front());
          wire->second.pop_front();
        } else {
          local(rank, i);
        }
      }
    }
  }

  // Index of the rank's first action that has not run; equal to the number of its actions if all have run.
  size_t next(int rank) const { return next_[static_cast<size_t>(rank)]; }
  bool finished(int rank) const { return next(rank) == schedules_[static_cast<size_t>(rank)].actions.size(); }
  // Messages that were sent but not received, by (sender, receiver).
  const std::map<std::pair<int, int>, std::deque<Message>>& channels() const { return channels_; }

 private:
  std::span<const Schedule> schedules_;
  std::vector<size_t> next_;
  std::map<std::pair<int, int>, std::deque<Message>> channels_;
};

}  // namespace esp::comm
