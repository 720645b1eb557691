// Elides copies of the input. Most schedules start with output = input; out of place that costs one more pass over the
// buffer. Instead, intervals of output and scratch that still equal the input are tracked: sends and sums read the
// input, the first receive_reduce takes its first operand from there, and overwritten intervals need no copy. A tracked
// interval is copied only when an action cannot use the input, or for the output at the end.
#include <algorithm>
#include <iterator>
#include <map>
#include <utility>

#include "esp/comm/plan.h"

namespace esp::comm {
namespace {

// The tracked intervals of one buffer.
class Promises {
 public:
  Promises(Buffer buffer, std::vector<Action>& out) : buffer_(buffer), out_(out) {}

  void promise(const BufferRegion& region, size_t input_offset) {
    drop(region);
    auto at = pieces_.emplace(region.offset, Piece{region.offset + region.count, input_offset}).first;
    // Merges adjacent slices of one copy, because readers may be sliced differently.
    if (auto next = std::next(at); next != pieces_.end() && follows(*at, *next)) {
      at->second.end = next->second.end;
      pieces_.erase(next);
    }
    if (at != pieces_.begin() && follows(*std::prev(at), *at)) {
      std::prev(at)->second.end = at->second.end;
      pieces_.erase(at);
    }
  }

  // The input region equal to `region`, if all of it is tracked in one interval.
  bool serve(const BufferRegion& region, BufferRegion& input) const {
    if (region.buffer != buffer_) return false;
    auto next = pieces_.upper_bound(region.offset);
    if (next == pieces_.begin()) return false;
    auto piece = std::prev(next);
    if (piece->second.end < region.offset + region.count) return false;
    input = {Buffer::input, piece->second.input + (region.offset - piece->first), region.count};
    return true;
  }

  // Copies the tracked part of `region`.
  void keep(const BufferRegion& region, int round) {
    if (region.buffer != buffer_) return;
    cut(region.offset);
    cut(region.offset + region.count);
    auto at = pieces_.lower_bound(region.offset);
    while (at != pieces_.end() && at->first < region.offset + region.count) {
      size_t count = at->second.end - at->first;
      BufferRegion from{Buffer::input, at->second.input, count};
      out_.push_back({Act::copy, round, -1, {buffer_, at->first, count}, {from}});
      at = pieces_.erase(at);
    }
  }

  // `region` is overwritten.
  void drop(const BufferRegion& region) {
    if (region.buffer != buffer_) return;
    cut(region.offset);
    cut(region.offset + region.count);
    auto first = pieces_.lower_bound(region.offset);
    pieces_.erase(first, pieces_.lower_bound(region.offset + region.count));
  }

  void keep_all(int round) { keep({buffer_, 0, SIZE_MAX}, round); }

 private:
  struct Piece {
    size_t end, input;
  };
  using Entry = std::pair<const size_t, Piece>;
  static bool follows(const Entry& first, const Entry& second) {
    return first.second.end == second.first &&
           first.second.input + (first.second.end - first.first) == second.second.input;
  }

  void cut(size_t at) {
    auto next = pieces_.upper_bound(at);
    if (next == pieces_.begin()) return;
    auto piece = std::prev(next);
    if (piece->first == at || piece->second.end <= at) return;
    Piece tail{piece->second.end, piece->second.input + (at - piece->first)};
    piece->second.end = at;
    pieces_.emplace(at, tail);
  }

  const Buffer buffer_;
  std::map<size_t, Piece> pieces_;  // by begin
  std::vector<Action>& out_;
};

// Both buffers a schedule may write.
class Ledger {
 public:
  explicit Ledger(std::vector<Action>& out) : output_(Buffer::output, out), scratch_(Buffer::scratch, out) {}

  // Replaces reads by reads of the input where possible, and inserts the copies that remain necessary.
  void read(BufferRegion& region, int round) {
    BufferRegion input;
    if (output_.serve(region, input) || scratch_.serve(region, input)) region = input;
    output_.keep(region, round);
    scratch_.keep(region, round);
  }
  bool serve(const BufferRegion& region, BufferRegion& input) const {
    return output_.serve(region, input) || scratch_.serve(region, input);
  }
  void overwrite(const BufferRegion& region) {
    output_.drop(region);
    scratch_.drop(region);
  }
  void promise(const BufferRegion& region, size_t input_offset) {
    (region.buffer == Buffer::output ? output_ : scratch_).promise(region, input_offset);
  }
  void settle(int round) { output_.keep_all(round); }

 private:
  Promises output_, scratch_;
};

}  // namespace

Schedule forward_copies(const Schedule& schedule) {
  Schedule result;
  result.scratch_count = schedule.scratch_count;
  result.num_rounds = schedule.num_rounds;
  Ledger ledger(result.actions);
  int last_round = 0;
  for (Action action : schedule.actions) {
    last_round = action.round;
    if (action.region.count == 0) {
      result.actions.push_back(std::move(action));
      continue;
    }
    for (BufferRegion& source : action.sources) ledger.read(source, action.round);
    if (action.act == Act::copy && action.sources[0].buffer == Buffer::input) {
      ledger.promise(action.region, action.sources[0].offset);
      continue;
    }
    BufferRegion input;
    if (action.act == Act::send) {
      ledger.read(action.region, action.round);
    } else if (action.act == Act::receive_reduce && ledger.serve(action.region, input)) {
      action.sources = {input};
      ledger.overwrite(action.region);
    } else if (action.act == Act::receive_reduce) {
      ledger.read(action.region, action.round);
    } else {
      ledger.overwrite(action.region);
    }
    result.actions.push_back(std::move(action));
  }
  ledger.settle(last_round);
  return result;
}

}  // namespace esp::comm
