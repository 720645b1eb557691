#include "esp/comm/validate_form.h"

#include <algorithm>
#include <iterator>
#include <map>

#include <fmt/format.h>

#include "esp/comm/validate.h"

namespace esp::comm {

std::string in_words(const BufferRegion& region) {
  constexpr std::string_view kNames[] = {"input", "output", "scratch"};
  return fmt::format("{}[{}, {})", kNames[static_cast<size_t>(region.buffer)], region.offset,
                     region.offset + region.count);
}

std::string in_words(int rank, size_t index, const Action& action) {
  std::string text = fmt::format("rank {}, action {} (round {}, ", rank, index, action.round);
  switch (action.act) {
    case Act::send:
      return text + fmt::format("send {} to {})", in_words(action.region), action.peer);
    case Act::receive:
      return text + fmt::format("receive {} from {})", in_words(action.region), action.peer);
    case Act::receive_reduce:
      return text + fmt::format("receive_reduce {} from {})", in_words(action.region), action.peer);
    case Act::copy:
      return text + fmt::format("copy into {})", in_words(action.region));
    case Act::reduce:
      return text + fmt::format("reduce into {})", in_words(action.region));
  }
  return text;
}

bool is_message(Act act) {
  return act == Act::send || act == Act::receive || act == Act::receive_reduce;
}

namespace {

// The union of some regions.
class Cover {
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

// Checks that need one rank's schedule only.
class FormCheck {
 public:
  FormCheck(const CollectiveSpec& spec, const Schedule& schedule, int num_rounds)
      : problem_(spec), schedule_(schedule), num_rounds_(num_rounds) {
    BufferSizes sizes = sizes_of(spec);
    limits_[0] = sizes.input;
    limits_[1] = sizes.output;
    limits_[2] = schedule.scratch_count;
  }

  void run() {
    if (schedule_.num_rounds != num_rounds_)
      throw Fault{
          fmt::format("rank {} counts {} rounds, rank 0 counts {}", problem_.rank, schedule_.num_rounds, num_rounds_)};
    const std::vector<Action>& actions = schedule_.actions;
    for (size_t i = 0; i < actions.size(); ++i) {
      check_action(i);
      if (i > 0 && actions[i].round < actions[i - 1].round) fail(i, "comes after a later round");
    }
    for (size_t begin = 0, end = 0; begin < actions.size(); begin = end) {
      while (end < actions.size() && actions[end].round == actions[begin].round) ++end;
      check_round(begin, end);
    }
  }

 private:
  [[noreturn]] void fail(size_t i, const std::string& what) const {
    throw Fault{fmt::format("{}: {}", in_words(problem_.rank, i, schedule_.actions[i]), what)};
  }

  void check_region(size_t i, const BufferRegion& region) const {
    size_t limit = limits_[static_cast<size_t>(region.buffer)];
    if (region.offset > limit || region.count > limit - region.offset)
      fail(i, fmt::format("{} is outside the buffer of {} elements", in_words(region), limit));
  }

  void check_action(size_t i) const {
    const Action& action = schedule_.actions[i];
    check_region(i, action.region);
    for (const BufferRegion& source : action.sources) check_region(i, source);
    if (action.round < 0 || (action.round >= num_rounds_ && (action.round > 0 || is_message(action.act))))
      fail(i, fmt::format("the schedule has {} rounds", num_rounds_));
    if (action.act != Act::send && action.region.buffer == Buffer::input) fail(i, "the input is read only");
    if (action.region.count == 0 && !(problem_.op == Op::barrier && is_message(action.act))) fail(i, "moves nothing");
    if (is_message(action.act)) {
      if (action.peer < 0 || action.peer >= problem_.size || action.peer == problem_.rank)
        fail(i, fmt::format("the peer must be another of the ranks 0 to {}", problem_.size - 1));
      if (!action.sources.empty()) fail(i, "a message has no sources");
      return;
    }
    if (action.sources.empty() || (action.act == Act::copy && action.sources.size() != 1))
      fail(i, fmt::format("has {} sources", action.sources.size()));
    for (const BufferRegion& source : action.sources) {
      if (source.count != action.region.count) fail(i, fmt::format("source {} differs in size", in_words(source)));
      if (source.overlaps(action.region) && source.offset != action.region.offset)
        fail(i, fmt::format("source {} overlaps the destination in part", in_words(source)));
    }
  }

  // Messages of one round are in flight together: none may wait for another to end. Local work may wait (a sum into
  // memory being sent); it is then `held`, and no message of the round may depend on it.
  void check_round(size_t begin, size_t end) const {
    Cover sent, arrived, held, held_written;
    for (size_t i = begin; i < end; ++i) {
      const Action& action = schedule_.actions[i];
      const BufferRegion& region = action.region;
      if (action.act == Act::send) {
        if (arrived.overlaps(region)) fail(i, "sends what arrives in the same round");
        if (held_written.overlaps(region)) fail(i, "sends what must wait for another send of its round");
        sent.add(region);
      } else if (is_message(action.act)) {
        if (sent.overlaps(region)) fail(i, "writes what is being sent in the same round");
        if (held.overlaps(region)) fail(i, "must wait for a send of its round");
        arrived.add(region);
      } else {
        auto meets = [&](const Cover& cover) {
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
    // A receive may be listed before the conflicting send.
    Cover received;
    for (size_t i = end; i-- > begin;) {
      const Action& action = schedule_.actions[i];
      if (action.act == Act::send && received.overlaps(action.region))
        fail(i, "sends what a receive of its round writes");
      if (action.act == Act::receive || action.act == Act::receive_reduce) received.add(action.region);
    }
  }

  const CollectiveSpec& problem_;
  const Schedule& schedule_;
  const int num_rounds_;
  size_t limits_[3];
};

}  // namespace

void check_form(const CollectiveSpec& spec, const Schedule& schedule, int num_rounds) {
  FormCheck(spec, schedule, num_rounds).run();
}

}  // namespace esp::comm
