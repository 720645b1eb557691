#include "esp/comm/validate_form.h"

#include <algorithm>
#include <iterator>
#include <map>

#include <fmt/format.h>

#include "esp/comm/validate.h"

namespace esp::comm {

std::string describe(const BufferRegion& region) {
  constexpr std::string_view kNames[] = {"input", "output", "scratch"};
  return fmt::format("{}[{}, {})", kNames[static_cast<size_t>(region.buffer)], region.offset,
                     region.offset + region.count);
}

std::string describe(int rank, size_t index, const Action& action) {
  std::string text = fmt::format("rank {}, action {} (round {}, ", rank, index, action.round);
  switch (action.type) {
    case ActionType::send:
      return text + fmt::format("send {} to {})", describe(action.region), action.peer);
    case ActionType::receive:
      return text + fmt::format("receive {} from {})", describe(action.region), action.peer);
    case ActionType::receive_reduce:
      return text + fmt::format("receive_reduce {} from {})", describe(action.region), action.peer);
    case ActionType::copy:
      return text + fmt::format("copy into {})", describe(action.region));
    case ActionType::reduce:
      return text + fmt::format("reduce into {})", describe(action.region));
  }
  return text;
}

bool is_message(ActionType type) {
  return type == ActionType::send || type == ActionType::receive || type == ActionType::receive_reduce;
}

namespace {

// A union of regions.
class RegionSet {
 public:
  void add(const BufferRegion& region) {
    if (region.count == 0) return;
    auto& pieces = pieces_[static_cast<size_t>(region.buffer)];
    size_t begin = region.offset, end = region.offset + region.count;
    auto at = pieces.upper_bound(begin);
    if (at != pieces.begin() && std::prev(at)->second >= begin) --at;
    while (at != pieces.end() && at->first <= end) {
      begin = std::min(begin, at->first);
      end = std::max(end, at->second);
      at = pieces.erase(at);
    }
    pieces[begin] = end;
  }
  bool overlaps(const BufferRegion& region) const {
    const auto& pieces = pieces_[static_cast<size_t>(region.buffer)];
    auto at = pieces.lower_bound(region.offset + region.count);
    return region.count > 0 && at != pieces.begin() && std::prev(at)->second > region.offset;
  }

 private:
  std::map<size_t, size_t> pieces_[3];
};

// Checks that need the schedule of one rank only.
class FormCheck {
 public:
  FormCheck(const CollectiveSpec& spec, const Schedule& schedule, int num_rounds)
      : spec_(spec), schedule_(schedule), num_rounds_(num_rounds) {
    BufferSizes sizes = sizes_of(spec);
    limits_[0] = sizes.input;
    limits_[1] = sizes.output;
    limits_[2] = schedule.scratch_count;
  }

  void run() {
    if (schedule_.num_rounds != num_rounds_)
      throw ScheduleFault{fmt::format("rank {} has {} rounds; expected {}, as on rank 0", spec_.rank,
                                      schedule_.num_rounds, num_rounds_)};
    const std::vector<Action>& actions = schedule_.actions;
    for (size_t i = 0; i < actions.size(); ++i) {
      check_action(i);
      if (i > 0 && actions[i].round < actions[i - 1].round) fail(i, "is listed after an action of a later round");
    }
    for (size_t begin = 0, end = 0; begin < actions.size(); begin = end) {
      while (end < actions.size() && actions[end].round == actions[begin].round) ++end;
      check_round(begin, end);
    }
  }

 private:
  [[noreturn]] void fail(size_t i, const std::string& what) const {
    throw ScheduleFault{fmt::format("{}: {}", describe(spec_.rank, i, schedule_.actions[i]), what)};
  }

  void check_region(size_t i, const BufferRegion& region) const {
    size_t limit = limits_[static_cast<size_t>(region.buffer)];
    if (region.offset > limit || region.count > limit - region.offset)
      fail(i, fmt::format("{} is outside the buffer of {} elements", describe(region), limit));
  }

  void check_action(size_t i) const {
    const Action& action = schedule_.actions[i];
    check_region(i, action.region);
    for (const BufferRegion& source : action.sources) check_region(i, source);
    if (action.round < 0 || (action.round >= num_rounds_ && (action.round > 0 || is_message(action.type))))
      fail(i, fmt::format("round: got {}; the schedule has {} rounds", action.round, num_rounds_));
    if (action.type != ActionType::send && action.region.buffer == Buffer::input)
      fail(i, "writes to the input buffer; expected writes to other buffers only");
    if (action.region.count == 0 && !(spec_.op == Op::barrier && is_message(action.type)))
      fail(i, "moves no elements. Remove the action");
    if (is_message(action.type)) {
      if (action.peer < 0 || action.peer >= spec_.size || action.peer == spec_.rank)
        fail(i, fmt::format("peer: got {}; expected another rank from 0 to {}", action.peer, spec_.size - 1));
      if (!action.sources.empty())
        fail(i, fmt::format("sources: got {}; expected none for a message", action.sources.size()));
      return;
    }
    if (action.sources.empty() || (action.type == ActionType::copy && action.sources.size() != 1))
      fail(i, fmt::format("sources: got {}; expected {}", action.sources.size(),
                          action.type == ActionType::copy ? "one" : "at least one"));
    for (const BufferRegion& source : action.sources) {
      if (source.count != action.region.count)
        fail(i, fmt::format("source {}: got {} elements; expected {}, the size of the destination", describe(source),
                            source.count, action.region.count));
      if (source.overlaps(action.region) && source.offset != action.region.offset)
        fail(i, fmt::format("source {} overlaps the destination partially", describe(source)));
    }
  }

  // Messages of one round are in flight together, so no message may wait for another one of the round. Local work may
  // wait (for example a sum into memory that is being sent). Its regions are then `held`, and no message of the round
  // may use them.
  void check_round(size_t begin, size_t end) const {
    RegionSet sent, arrived, held, held_written;
    for (size_t i = begin; i < end; ++i) {
      const Action& action = schedule_.actions[i];
      const BufferRegion& region = action.region;
      if (action.type == ActionType::send) {
        if (arrived.overlaps(region)) fail(i, "sends data that arrives in the same round");
        if (held_written.overlaps(region)) fail(i, "sends data that depends on another send of the same round");
        sent.add(region);
      } else if (is_message(action.type)) {
        if (sent.overlaps(region)) fail(i, "overwrites data that is sent in the same round");
        if (held.overlaps(region)) fail(i, "depends on a send of the same round");
        arrived.add(region);
      } else {
        auto meets = [&](const RegionSet& cover) {
          return std::any_of(action.sources.begin(), action.sources.end(),
                             [&](const BufferRegion& source) { return cover.overlaps(source); });
        };
        if (meets(arrived)) arrived.add(region);
        if (sent.overlaps(region) || held.overlaps(region) || meets(held_written)) {
          held_written.add(region);
          held.add(region);
          for (const BufferRegion& source : action.sources) held.add(source);
        }
      }
    }
    // Also finds a receive that is listed after the send whose data it overwrites.
    RegionSet received;
    for (size_t i = end; i-- > begin;) {
      const Action& action = schedule_.actions[i];
      if (action.type == ActionType::send && received.overlaps(action.region))
        fail(i, "sends data that a receive of the same round overwrites");
      if (action.type == ActionType::receive || action.type == ActionType::receive_reduce) received.add(action.region);
    }
  }

  const CollectiveSpec& spec_;
  const Schedule& schedule_;
  const int num_rounds_;
  size_t limits_[3];
};

}  // namespace

void check_form(const CollectiveSpec& spec, const Schedule& schedule, int num_rounds) {
  FormCheck(spec, schedule, num_rounds).run();
}

}  // namespace esp::comm
