#include "esp/comm/validate.h"

#include <algorithm>
#include <iterator>
#include <map>
#include <optional>

#include <fmt/ranges.h>

#include "esp/base/error.h"
#include "esp/comm/arguments.h"
#include "esp/comm/schedule_interpreter.h"
#include "esp/comm/symbolic.h"
#include "esp/comm/validate_form.h"

namespace esp::comm {
namespace {

// A symbolic message: its contents and, for barriers, the set of ranks that have entered as far as the sender knows.
struct SymbolicMessage {
  size_t index = 0;
  SymbolicRanges parts;
  uint32_t entered = 0;
};

class Proof {
 public:
  Proof(std::span<const CollectiveSpec> specs, std::span<const Schedule> schedules)
      : specs_(specs),
        schedules_(schedules),
        sets_(static_cast<int>(specs.size())),
        memory_(specs.size()),
        order_(schedules) {
    for (int r = 0; r < size(); ++r) {
      size_t count = sizes_of(specs_[at(r)]).input;
      if (count > 0) memory_[at(r)][0].write(0, {{0, count, 0, sets_.of(r)}});
      received_entries_.push_back(sets_.of(r));
    }
  }

  void run() {
    order_.run(
        schedules_[0].num_rounds, [&](int rank, size_t i) { return send(rank, i); },
        [&](int rank, size_t i, SymbolicMessage& message) { receive(rank, i, message); },
        [&](int rank, size_t i) { local(rank, i); });
    for (int r = 0; r < size(); ++r)
      if (!order_.finished(r))
        fail(r, order_.next(r),
             fmt::format("waits forever: rank {} sends no further message to this rank",
                         action(r, order_.next(r)).peer));
    for (const auto& [ends, wire] : order_.channels())
      if (!wire.empty()) fail(ends.first, wire.front().index, "no action receives this message");
    for (int r = 0; r < size(); ++r) check_result(r);
  }

 private:
  static size_t at(int rank) { return static_cast<size_t>(rank); }
  int size() const { return static_cast<int>(specs_.size()); }
  const Action& action(int rank, size_t i) const { return schedules_[at(rank)].actions[i]; }
  SymbolicMemory& memory(int rank, Buffer buffer) { return memory_[at(rank)][static_cast<size_t>(buffer)]; }

  [[noreturn]] void fail(int rank, size_t i, const std::string& what) const {
    throw ScheduleFault{fmt::format("{}: {}", describe(rank, i, action(rank, i)), what)};
  }

  SymbolicRanges read(int rank, size_t i, const BufferRegion& region) {
    SymbolicRanges parts = memory(rank, region.buffer).read(region.offset, region.count);
    if ((work_ += parts.size()) > kMaxWork)
      fail(rank, i, fmt::format("checking this schedule reads more than {} ranges, the limit", kMaxWork));
    for (const SymbolicRange& part : parts)
      if (part.set == 0)
        fail(rank, i,
             fmt::format("reads {}, which was never written",
                         describe({region.buffer, region.offset + part.offset, part.count})));
    return parts;
  }

  SymbolicRanges sum(int rank, size_t i, SymbolicRanges a, SymbolicRanges b) {
    align(a, b);
    for (size_t k = 0; k < a.size(); ++k) {
      size_t begin = action(rank, i).region.offset + a[k].offset;
      if (a[k].first != b[k].first)
        fail(rank, i,
             fmt::format("adds input element {} to input element {} at element {}; expected equal indices", b[k].first,
                         a[k].first, begin));
      int shared = 0;
      auto both = sets_.disjoint_union(a[k].set, b[k].set, shared);
      if (!both)
        fail(
            rank, i,
            fmt::format("adds the input of rank {} twice in elements {} to {}", shared, begin, begin + a[k].count - 1));
      a[k].set = *both;
    }
    return a;
  }

  SymbolicMessage send(int rank, size_t i) {
    return {i, read(rank, i, action(rank, i).region), received_entries_[at(rank)]};
  }

  void receive(int rank, size_t i, SymbolicMessage& message) {
    const Action &mine = action(rank, i), &theirs = action(mine.peer, message.index);
    if (mine.region.count != theirs.region.count || mine.round != theirs.round)
      fail(
          rank, i,
          fmt::format("receives a message of {} elements in round {}; expected {} in round {}: {}", theirs.region.count,
                      theirs.round, mine.region.count, mine.round, describe(mine.peer, message.index, theirs)));
    received_entries_[at(rank)] = sets_.any_union(received_entries_[at(rank)], message.entered);
    SymbolicRanges parts = std::move(message.parts);
    if (mine.type == ActionType::receive_reduce) parts = sum(rank, i, read(rank, i, mine.region), std::move(parts));
    memory(rank, mine.region.buffer).write(mine.region.offset, parts);
  }

  void local(int rank, size_t i) {
    const Action& step = action(rank, i);
    SymbolicRanges parts = read(rank, i, step.sources[0]);
    for (size_t s = 1; s < step.sources.size(); ++s)
      parts = sum(rank, i, std::move(parts), read(rank, i, step.sources[s]));
    memory(rank, step.region.buffer).write(step.region.offset, parts);
  }

  // The contents that rank r's output must have.
  SymbolicRanges expected(int r) {
    const CollectiveSpec& p = specs_[at(r)];
    int n = p.size;
    SymbolicRanges want;
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
          add(p.recv_offsets[q], p.recv_counts[q], specs_[q].send_offsets[at(r)], sets_.of(static_cast<int>(q)));
        break;
      default:
        break;
    }
    return want;
  }

  void check_result(int r) {
    if (specs_[at(r)].op == Op::barrier) {
      for (int q = 0; q < size(); ++q)
        if (sets_.any_union(received_entries_[at(r)], sets_.of(q)) != received_entries_[at(r)])
          throw ScheduleFault{fmt::format("rank {} may leave the barrier before rank {} has entered it", r, q)};
      return;
    }
    for (const SymbolicRange& want : expected(r))
      for (const SymbolicRange& got : memory(r, Buffer::output).read(want.offset, want.count)) {
        size_t begin = want.offset + got.offset;
        std::string where = fmt::format("rank {}, output elements {} to {}", r, begin, begin + got.count - 1);
        if (got.set == 0) throw ScheduleFault{where + " are never written"};
        if (got.set != want.set)
          throw ScheduleFault{fmt::format("{}: got the sum over ranks {}; expected the sum over ranks {}", where,
                                          fmt::join(sets_.ranks(got.set), ","), fmt::join(sets_.ranks(want.set), ","))};
        if (got.first != want.first + got.offset)
          throw ScheduleFault{fmt::format("{}: got input elements starting at {}; expected them to start at {}", where,
                                          got.first, want.first + got.offset)};
      }
  }

  // Limit on the number of ranges that the proof reads. It is far above the number that any built-in algorithm needs,
  // and it bounds the time that a malicious file can take.
  static constexpr size_t kMaxWork = size_t{1} << 26;
  size_t work_ = 0;
  std::span<const CollectiveSpec> specs_;
  std::span<const Schedule> schedules_;
  RankSets sets_;
  struct Memories {
    SymbolicMemory buffers[3];
    SymbolicMemory& operator[](size_t buffer) { return buffers[buffer]; }
  };
  std::vector<Memories> memory_;
  std::vector<uint32_t> received_entries_;
  ScheduleInterpreter<SymbolicMessage> order_;
};

}  // namespace

BufferSizes sizes_of(const CollectiveSpec& spec) {
  Call call;
  call.op = spec.op;
  call.count = spec.count;
  call.root = spec.root;
  call.send_counts = spec.send_counts;
  call.send_offsets = spec.send_offsets;
  call.recv_counts = spec.recv_counts;
  call.recv_offsets = spec.recv_offsets;
  BufferCounts extents = buffer_counts_of(call, spec.rank, spec.size);
  return {extents.in, extents.out};
}

std::vector<CollectiveSpec> specs_for_all_ranks(const CollectiveSpec& spec) {
  std::vector<CollectiveSpec> specs(static_cast<size_t>(spec.size), spec);
  for (int r = 0; r < spec.size; ++r) specs[static_cast<size_t>(r)].rank = r;
  return specs;
}

std::vector<Schedule> build_all(const AlgorithmRow& row, std::span<const CollectiveSpec> specs) {
  std::vector<Schedule> schedules;
  for (const CollectiveSpec& spec : specs) schedules.push_back(row.build(spec));
  return schedules;
}

std::string find_fault(std::span<const CollectiveSpec> specs, std::span<const Schedule> schedules) {
  if (specs.empty() || specs.size() != schedules.size())
    return fmt::format("{} schedules for {} ranks", schedules.size(), specs.size());
  try {
    for (size_t r = 0; r < specs.size(); ++r) check_form(specs[r], schedules[r], schedules[0].num_rounds);
    Proof(specs, schedules).run();
  } catch (const ScheduleFault& fault) {
    return fault.text;
  }
  return "";
}

void validate(std::span<const CollectiveSpec> specs, std::span<const Schedule> schedules) {
  std::string fault = find_fault(specs, schedules);
  if (!fault.empty())
    throw UsageError(fmt::format("this schedule is not a correct {}: {}", name_of(specs[0].op), fault));
}

}  // namespace esp::comm
