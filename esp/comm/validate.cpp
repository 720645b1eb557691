#include "esp/comm/validate.h"

#include <algorithm>
#include <iterator>
#include <map>
#include <optional>

#include <fmt/ranges.h>

#include "esp/base/error.h"
#include "esp/comm/arguments.h"
#include "esp/comm/in_order.h"
#include "esp/comm/symbolic.h"

namespace esp::comm {
namespace {

// Caught at the end of this file; the message names rank and action.
struct Fault {
  std::string text;
};

std::string in_words(const Region& region) {
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

// The union of some regions.
class Cover {
 public:
  void add(const Region& region) {
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
  bool overlaps(const Region& region) const {
    const auto& pieces = pieces_[static_cast<size_t>(region.buffer)];
    auto at = pieces.lower_bound(region.offset + region.count);
    return region.count > 0 && at != pieces.begin() && std::prev(at)->second > region.offset;
  }

 private:
  std::map<size_t, size_t> pieces_[3];
};

// What can be seen in one rank's schedule alone.
class FormCheck {
 public:
  FormCheck(const Problem& problem, const Schedule& schedule, int num_rounds)
      : problem_(problem), schedule_(schedule), num_rounds_(num_rounds) {
    Sizes sizes = sizes_of(problem);
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

  void check_region(size_t i, const Region& region) const {
    size_t limit = limits_[static_cast<size_t>(region.buffer)];
    if (region.offset > limit || region.count > limit - region.offset)
      fail(i, fmt::format("{} is outside the buffer of {} elements", in_words(region), limit));
  }

  void check_action(size_t i) const {
    const Action& action = schedule_.actions[i];
    check_region(i, action.region);
    for (const Region& source : action.sources) check_region(i, source);
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
    for (const Region& source : action.sources) {
      if (source.count != action.region.count) fail(i, fmt::format("source {} differs in size", in_words(source)));
      if (source.overlaps(action.region) && source.offset != action.region.offset)
        fail(i, fmt::format("source {} overlaps the destination in part", in_words(source)));
    }
  }

  // Messages of one round are under way together: none may wait for another to end. Local work may (a sum into what is
  // being sent); it is then `held`, and no message of the round may depend on it in turn.
  void check_round(size_t begin, size_t end) const {
    Cover sent, arrived, held, held_written;
    for (size_t i = begin; i < end; ++i) {
      const Action& action = schedule_.actions[i];
      const Region& region = action.region;
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
                             [&](const Region& source) { return cover.overlaps(source); });
        };
        if (meets(arrived)) arrived.add(region);
        if (sent.overlaps(region) || held.overlaps(region) || meets(held_written)) {
          held_written.add(region);
          held.add(region);
          for (const Region& source : action.sources) held.add(source);
        }
      }
    }
    // A receive may be listed before the send it collides with.
    Cover received;
    for (size_t i = end; i-- > begin;) {
      const Action& action = schedule_.actions[i];
      if (action.act == Act::send && received.overlaps(action.region))
        fail(i, "sends what a receive of its round writes");
      if (action.act == Act::receive || action.act == Act::receive_reduce) received.add(action.region);
    }
  }

  const Problem& problem_;
  const Schedule& schedule_;
  const int num_rounds_;
  size_t limits_[3];
};

// A message in symbols: what it carries, and for barriers whom its sender has heard of.
struct Symbols {
  size_t index = 0;
  Parts parts;
  uint32_t heard = 0;
};

class Proof {
 public:
  Proof(std::span<const Problem> problems, std::span<const Schedule> schedules)
      : problems_(problems),
        schedules_(schedules),
        sets_(static_cast<int>(problems.size())),
        memory_(problems.size()),
        order_(schedules) {
    for (int r = 0; r < size(); ++r) {
      size_t count = sizes_of(problems_[at(r)]).input;
      if (count > 0) memory_[at(r)][0].write(0, {{0, count, 0, sets_.of(r)}});
      heard_.push_back(sets_.of(r));
    }
  }

  void run() {
    order_.run(
        schedules_[0].num_rounds, [&](int rank, size_t i) { return send(rank, i); },
        [&](int rank, size_t i, Symbols& message) { receive(rank, i, message); },
        [&](int rank, size_t i) { local(rank, i); });
    for (int r = 0; r < size(); ++r)
      if (!order_.finished(r))
        fail(r, order_.next(r),
             fmt::format("waits forever: rank {} sends nothing more to it", action(r, order_.next(r)).peer));
    for (const auto& [ends, wire] : order_.wires())
      if (!wire.empty()) fail(ends.first, wire.front().index, "is never received");
    for (int r = 0; r < size(); ++r) check_result(r);
  }

 private:
  static size_t at(int rank) { return static_cast<size_t>(rank); }
  int size() const { return static_cast<int>(problems_.size()); }
  const Action& action(int rank, size_t i) const { return schedules_[at(rank)].actions[i]; }
  SymbolicMemory& memory(int rank, Buffer buffer) { return memory_[at(rank)][static_cast<size_t>(buffer)]; }

  [[noreturn]] void fail(int rank, size_t i, const std::string& what) const {
    throw Fault{fmt::format("{}: {}", in_words(rank, i, action(rank, i)), what)};
  }

  Parts read(int rank, size_t i, const Region& region) {
    Parts parts = memory(rank, region.buffer).read(region.offset, region.count);
    for (const Part& part : parts)
      if (part.set == 0)
        fail(rank, i,
             fmt::format("reads {}, which nothing has written",
                         in_words({region.buffer, region.offset + part.offset, part.count})));
    return parts;
  }

  Parts sum(int rank, size_t i, Parts a, Parts b) {
    align(a, b);
    for (size_t k = 0; k < a.size(); ++k) {
      size_t begin = action(rank, i).region.offset + a[k].offset;
      if (a[k].first != b[k].first)
        fail(rank, i,
             fmt::format("adds input element {} to input element {} at element {}", b[k].first, a[k].first, begin));
      int shared = 0;
      auto both = sets_.disjoint_union(a[k].set, b[k].set, shared);
      if (!both)
        fail(rank, i, fmt::format("counts rank {} twice in elements {} to {}", shared, begin, begin + a[k].count - 1));
      a[k].set = *both;
    }
    return a;
  }

  Symbols send(int rank, size_t i) { return {i, read(rank, i, action(rank, i).region), heard_[at(rank)]}; }

  void receive(int rank, size_t i, Symbols& message) {
    const Action &mine = action(rank, i), &theirs = action(mine.peer, message.index);
    if (mine.region.count != theirs.region.count || mine.round != theirs.round)
      fail(rank, i,
           fmt::format("meets a message of {} elements in round {}: {}", theirs.region.count, theirs.round,
                       in_words(mine.peer, message.index, theirs)));
    heard_[at(rank)] = sets_.any_union(heard_[at(rank)], message.heard);
    Parts parts = std::move(message.parts);
    if (mine.act == Act::receive_reduce) parts = sum(rank, i, read(rank, i, mine.region), std::move(parts));
    memory(rank, mine.region.buffer).write(mine.region.offset, parts);
  }

  void local(int rank, size_t i) {
    const Action& step = action(rank, i);
    Parts parts = read(rank, i, step.sources[0]);
    for (size_t s = 1; s < step.sources.size(); ++s)
      parts = sum(rank, i, std::move(parts), read(rank, i, step.sources[s]));
    memory(rank, step.region.buffer).write(step.region.offset, parts);
  }

  // What rank r's output must hold.
  Parts expected(int r) {
    const Problem& p = problems_[at(r)];
    int n = p.size;
    Parts want;
    auto add = [&](size_t offset, size_t count, size_t first, uint32_t set) {
      if (count > 0) want.push_back({offset, count, first, set});
    };
    Chunk own = p.op == Op::all_to_all_v ? Chunk{} : chunk_of(p.count, n, r);
    switch (p.op) {
      case Op::all_reduce:
        add(0, p.count, 0, sets_.all());
        break;
      case Op::reduce:
        add(0, r == p.root ? p.count : 0, 0, sets_.all());
        break;
      case Op::broadcast:
        add(0, p.count, 0, sets_.of(p.root));
        break;
      case Op::reduce_scatter:
        add(0, own.count, own.offset, sets_.all());
        break;
      case Op::scatter:
        add(0, own.count, own.offset, sets_.of(p.root));
        break;
      case Op::all_gather:
      case Op::gather:
        for (int q = 0; q < n && (p.op == Op::all_gather || r == p.root); ++q) {
          Chunk theirs = chunk_of(p.count, n, q);
          add(theirs.offset, theirs.count, 0, sets_.of(q));
        }
        break;
      case Op::all_to_all:
        for (int q = 0; q < n; ++q) add(chunk_of(p.count, n, q).offset, own.count, own.offset, sets_.of(q));
        break;
      case Op::all_to_all_v:
        for (size_t q = 0; q < at(n); ++q)
          add(p.recv_offsets[q], p.recv_counts[q], problems_[q].send_offsets[at(r)], sets_.of(static_cast<int>(q)));
        break;
      default:
        break;
    }
    return want;
  }

  void check_result(int r) {
    if (problems_[at(r)].op == Op::barrier) {
      for (int q = 0; q < size(); ++q)
        if (sets_.any_union(heard_[at(r)], sets_.of(q)) != heard_[at(r)])
          throw Fault{fmt::format("rank {} may leave before rank {} has come", r, q)};
      return;
    }
    for (const Part& want : expected(r))
      for (const Part& got : memory(r, Buffer::output).read(want.offset, want.count)) {
        size_t begin = want.offset + got.offset;
        std::string where = fmt::format("rank {}, output elements {} to {}", r, begin, begin + got.count - 1);
        if (got.set == 0) throw Fault{where + " are never written"};
        if (got.set != want.set)
          throw Fault{fmt::format("{} end as the sum over ranks {}; it should be {}", where,
                                  fmt::join(sets_.ranks(got.set), ","), fmt::join(sets_.ranks(want.set), ","))};
        if (got.first != want.first + got.offset)
          throw Fault{fmt::format("{} end with input elements from {}; they should start at {}", where, got.first,
                                  want.first + got.offset)};
      }
  }

  std::span<const Problem> problems_;
  std::span<const Schedule> schedules_;
  RankSets sets_;
  struct Memories {
    SymbolicMemory buffers[3];
    SymbolicMemory& operator[](size_t buffer) { return buffers[buffer]; }
  };
  std::vector<Memories> memory_;
  std::vector<uint32_t> heard_;
  InOrder<Symbols> order_;
};

}  // namespace

Sizes sizes_of(const Problem& problem) {
  Call call;
  call.op = problem.op;
  call.count = problem.count;
  call.root = problem.root;
  call.send_counts = problem.send_counts;
  call.send_offsets = problem.send_offsets;
  call.recv_counts = problem.recv_counts;
  call.recv_offsets = problem.recv_offsets;
  Extents extents = extents_of(call, problem.rank, problem.size);
  return {extents.in, extents.out};
}

std::vector<Problem> for_every_rank(const Problem& problem) {
  std::vector<Problem> problems(static_cast<size_t>(problem.size), problem);
  for (int r = 0; r < problem.size; ++r) problems[static_cast<size_t>(r)].rank = r;
  return problems;
}

std::vector<Schedule> build_all(const AlgorithmRow& row, std::span<const Problem> problems) {
  std::vector<Schedule> schedules;
  for (const Problem& problem : problems) schedules.push_back(row.build(problem));
  return schedules;
}

std::string find_fault(std::span<const Problem> problems, std::span<const Schedule> schedules) {
  if (problems.empty() || problems.size() != schedules.size())
    return fmt::format("{} schedules for {} ranks", schedules.size(), problems.size());
  try {
    for (size_t r = 0; r < problems.size(); ++r) FormCheck(problems[r], schedules[r], schedules[0].num_rounds).run();
    Proof(problems, schedules).run();
  } catch (const Fault& fault) {
    return fault.text;
  }
  return "";
}

void validate(std::span<const Problem> problems, std::span<const Schedule> schedules) {
  std::string fault = find_fault(problems, schedules);
  if (!fault.empty())
    throw UsageError(fmt::format("this schedule is not a correct {}: {}", name_of(problems[0].op), fault));
}

}  // namespace esp::comm
