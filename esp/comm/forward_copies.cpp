// Removes copies of the input. Most schedules start with a copy output = input. In an out-of-place call this copy costs
// one more pass over the buffer. This pass removes the copy and tracks the intervals of output and scratch that would
// still equal the input. Sends and sums then read the input, and the first receive_reduce takes its first operand from
// the input. An interval that is overwritten needs no copy. An interval is copied only if an action cannot use the
// input, or at the end if it belongs to the output.
#include <algorithm>
#include <iterator>
#include <map>
#include <utility>

#include "esp/comm/plan.h"

namespace esp::comm {
namespace {

// The tracked intervals of one buffer: intervals whose copy was removed, with the input region that they equal.
class ElidedCopies {
 public:
  ElidedCopies(Buffer buffer, std::vector<Action>& out) : buffer_(buffer), out_(out) {}

  void track(const BufferRegion& region, size_t input_offset) {
    untrack(region);
    auto at = intervals_.emplace(region.offset, ElidedInterval{region.offset + region.count, input_offset}).first;
    // Merges adjacent slices of one copy, because actions that read them may be sliced differently.
    if (auto next = std::next(at); next != intervals_.end() && follows(*at, *next)) {
      at->second.end = next->second.end;
      intervals_.erase(next);
    }
    if (at != intervals_.begin() && follows(*std::prev(at), *at)) {
      std::prev(at)->second.end = at->second.end;
      intervals_.erase(at);
    }
  }

  // Finds the input region that equals `region`. False if no single interval covers all of `region`.
  bool find_input(const BufferRegion& region, BufferRegion& input) const {
    if (region.buffer != buffer_) return false;
    auto next = intervals_.upper_bound(region.offset);
    if (next == intervals_.begin()) return false;
    auto interval = std::prev(next);
    if (interval->second.end < region.offset + region.count) return false;
    input = {Buffer::input, interval->second.input + (region.offset - interval->first), region.count};
    return true;
  }

  // Inserts the removed copy for the tracked part of `region`.
  void materialize(const BufferRegion& region, int round) {
    if (region.buffer != buffer_) return;
    cut(region.offset);
    cut(region.offset + region.count);
    auto at = intervals_.lower_bound(region.offset);
    while (at != intervals_.end() && at->first < region.offset + region.count) {
      size_t count = at->second.end - at->first;
      BufferRegion from{Buffer::input, at->second.input, count};
      out_.push_back({ActionType::copy, round, -1, {buffer_, at->first, count}, {from}});
      at = intervals_.erase(at);
    }
  }

  // Stops tracking `region`, because an action overwrites it.
  void untrack(const BufferRegion& region) {
    if (region.buffer != buffer_) return;
    cut(region.offset);
    cut(region.offset + region.count);
    auto first = intervals_.lower_bound(region.offset);
    intervals_.erase(first, intervals_.lower_bound(region.offset + region.count));
  }

  void materialize_all(int round) { materialize({buffer_, 0, SIZE_MAX}, round); }

 private:
  struct ElidedInterval {
    size_t end, input;
  };
  using Entry = std::pair<const size_t, ElidedInterval>;
  static bool follows(const Entry& first, const Entry& second) {
    return first.second.end == second.first &&
           first.second.input + (first.second.end - first.first) == second.second.input;
  }

  void cut(size_t at) {
    auto next = intervals_.upper_bound(at);
    if (next == intervals_.begin()) return;
    auto interval = std::prev(next);
    if (interval->first == at || interval->second.end <= at) return;
    ElidedInterval tail{interval->second.end, interval->second.input + (at - interval->first)};
    interval->second.end = at;
    intervals_.emplace(at, tail);
  }

  const Buffer buffer_;
  std::map<size_t, ElidedInterval> intervals_;  // key: begin of the interval
  std::vector<Action>& out_;
};

// Tracked intervals of the two buffers that a schedule may write.
class ElidedBuffers {
 public:
  explicit ElidedBuffers(std::vector<Action>& out) : output_(Buffer::output, out), scratch_(Buffer::scratch, out) {}

  // Makes an action read the input instead of `region`. Where that is not possible, inserts the copy.
  void read(BufferRegion& region, int round) {
    BufferRegion input;
    if (output_.find_input(region, input) || scratch_.find_input(region, input)) region = input;
    output_.materialize(region, round);
    scratch_.materialize(region, round);
  }
  bool find_input(const BufferRegion& region, BufferRegion& input) const {
    return output_.find_input(region, input) || scratch_.find_input(region, input);
  }
  void overwrite(const BufferRegion& region) {
    output_.untrack(region);
    scratch_.untrack(region);
  }
  void track(const BufferRegion& region, size_t input_offset) {
    (region.buffer == Buffer::output ? output_ : scratch_).track(region, input_offset);
  }
  void finish(int round) { output_.materialize_all(round); }

 private:
  ElidedCopies output_, scratch_;
};

}  // namespace

Schedule forward_copies(const Schedule& schedule) {
  Schedule result;
  result.scratch_count = schedule.scratch_count;
  result.num_rounds = schedule.num_rounds;
  ElidedBuffers tracked(result.actions);
  int last_round = 0;
  for (Action action : schedule.actions) {
    last_round = action.round;
    if (action.region.count == 0) {
      result.actions.push_back(std::move(action));
      continue;
    }
    for (BufferRegion& source : action.sources) tracked.read(source, action.round);
    if (action.type == ActionType::copy && action.sources[0].buffer == Buffer::input) {
      tracked.track(action.region, action.sources[0].offset);
      continue;
    }
    BufferRegion input;
    if (action.type == ActionType::send) {
      tracked.read(action.region, action.round);
    } else if (action.type == ActionType::receive_reduce && tracked.find_input(action.region, input)) {
      action.sources = {input};
      tracked.overwrite(action.region);
    } else if (action.type == ActionType::receive_reduce) {
      tracked.read(action.region, action.round);
    } else {
      tracked.overwrite(action.region);
    }
    result.actions.push_back(std::move(action));
  }
  tracked.finish(last_round);
  return result;
}

}  // namespace esp::comm
