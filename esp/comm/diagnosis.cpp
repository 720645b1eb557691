#include "esp/comm/diagnosis.h"

#include <algorithm>
#include <string>

#include <fmt/format.h>
#include <fmt/ranges.h>

#include "esp/comm/call.h"

namespace esp::comm {

using net::CallPosition;
using net::Tag;

namespace {

constexpr int kReceiverBits = 64;

bool same_call(const Tag& a, const Tag& b) {
  return a.sequence == b.sequence && a.what == b.what && a.count == b.count && a.schedule == b.schedule;
}

// True if two ranks may be in the same call. A rank that has not chosen its algorithm yet may be in the call that
// another rank has already begun, so the algorithm is compared only if both have chosen.
bool same_position(Tag a, Tag b) {
  // mask of all bits of the algorithm id
  const uint64_t none = tag_of({}, 0, -1).what, chosen = tag_of({}, 0, 4094).what ^ none;
  if ((a.what & chosen) == 0 || (b.what & chosen) == 0) {
    a.what &= ~chosen;
    b.what &= ~chosen;
    a.schedule = b.schedule = 0;
  }
  if (op_of(a) == Op::all_to_all_v) a.count = b.count = 0;  // count holds the receivers of each rank, which may differ
  return same_call(a, b);
}

// True only if it is certain that the peer is in a different call. Point-to-point messages carry no collective number,
// so they prove nothing.
bool in_another_call(const CallPosition& position, const Tag& mine) {
  std::optional<Op> op = op_of(position.entered);
  return position.answered && position.inside && position.entered.sequence == mine.sequence && op &&
         is_collective(*op) && !same_position(position.entered, mine);
}

int world_rank(const net::Group& group, int rank) {
  return group.members[static_cast<size_t>(rank)];
}

std::string seconds(Duration duration) {
  return fmt::format("{:g} s", std::chrono::duration<double>(duration).count());
}

// Describes the position of a rank that has not entered this rank's call: inside an earlier call, after an earlier
// call, or before its first call.
std::string position_text(const CallPosition& position) {
  if (position.entered.sequence == 0) return "has made no call yet";
  return fmt::format("{} call #{} ({})", position.inside ? "is still in" : "has finished only",
                     position.entered.sequence, describe(position.entered));
}

}  // namespace

CommError mismatch_error(const Mismatch& mismatch, const net::Group& group, const std::string& what) {
  int me = world_rank(group, group.rank), peer = world_rank(group, mismatch.peer);
  const Tag &mine = mismatch.expected, &theirs = mismatch.got;
  std::string text;
  if (same_call(mine, theirs)) {
    text = fmt::format(
        "rank {} sent {} bytes where rank {} expected {}, both in {} (call #{}; message {} of the sender, message {} "
        "of the receiver)",
        peer, mismatch.got_bytes, me, mismatch.expected_bytes, what, mine.sequence, theirs.step, mine.step);
  } else if (mine.sequence == theirs.sequence) {
    text =
        fmt::format("rank {} called {}; rank {} called {} (call #{})", me, what, peer, describe(theirs), mine.sequence);
  } else {
    text = fmt::format("rank {} called {} (call #{}); rank {} called {} (call #{})", me, what, mine.sequence, peer,
                       describe(theirs), theirs.sequence);
  }
  return CommError(CommError::Kind::mismatch, peer, text);
}

uint64_t receivers_of(std::span<const size_t> send_counts) {
  if (send_counts.size() > kReceiverBits) return ~uint64_t{0};
  uint64_t bits = 0;
  for (size_t i = 0; i < send_counts.size(); ++i) bits |= uint64_t{send_counts[i] > 0} << i;
  return bits;
}

std::optional<CommError> difference_error(const Tag& mine, const net::Group& group,
                                          std::span<const CallPosition> positions, std::span<const int> awaited) {
  int me = world_rank(group, group.rank);
  auto between = [&](int member, const std::string& text) {
    return CommError(CommError::Kind::mismatch, world_rank(group, member), text);
  };
  for (int i = 0; i < group.size(); ++i)
    if (const CallPosition& position = positions[static_cast<size_t>(i)];
        i != group.rank && in_another_call(position, mine))
      return between(i, fmt::format("rank {} called {}; rank {} called {} (call #{})", me, describe(mine),
                                    world_rank(group, i), describe(position.entered), mine.sequence));
  for (int i : awaited) {
    const CallPosition& position = positions[static_cast<size_t>(i)];
    bool there = position.answered && same_position(position.entered, mine) && group.size() <= kReceiverBits;
    if (there && (position.entered.count >> group.rank & 1) == 0)
      return between(i, fmt::format("rank {} expects data from rank {}, which sends none, both in {} (call #{})", me,
                                    world_rank(group, i), describe(mine), mine.sequence));
  }
  return std::nullopt;
}

CommError deadline_error(const Tag& mine, Duration timeout, const net::Group& group,
                         std::span<const CallPosition> positions, int missing_peer, bool one_peer) {
  std::vector<int> silent, behind;
  int other = -1;
  for (int i = 0; i < group.size(); ++i) {
    if (i == group.rank || (one_peer && i != missing_peer)) continue;
    const CallPosition& position = positions[static_cast<size_t>(i)];
    if (!position.answered) {
      silent.push_back(world_rank(group, i));
    } else if (one_peer) {
      continue;  // the position proves nothing: the peer may be busy with a message for another rank
    } else if (position.entered.sequence < mine.sequence) {
      behind.push_back(i);
    } else if (in_another_call(position, mine)) {
      other = i;
    }
  }
  int me = world_rank(group, group.rank);
  std::string late = fmt::format("{} (call #{}) timed out after {}", describe(mine), mine.sequence, seconds(timeout));
  if (other >= 0) {
    int peer = world_rank(group, other);
    return CommError(
        CommError::Kind::mismatch, peer,
        fmt::format("rank {} called {}; rank {} called {} (call #{}; timed out after {})", me, describe(mine), peer,
                    describe(positions[static_cast<size_t>(other)].entered), mine.sequence, seconds(timeout)));
  }
  if (!silent.empty())
    return CommError(
        CommError::Kind::timeout, silent.front(),
        fmt::format("{}: rank {} does not answer; it is stopped, or the network to its host is interrupted", late,
                    fmt::join(silent, ", rank ")));
  if (!behind.empty()) {
    // The error names the rank that is furthest behind, because it delays the others.
    int last = *std::min_element(behind.begin(), behind.end(), [&](int a, int b) {
      return positions[static_cast<size_t>(a)].entered.sequence < positions[static_cast<size_t>(b)].entered.sequence;
    });
    int peer = world_rank(group, last);
    return CommError(
        CommError::Kind::timeout, peer,
        fmt::format("{}: rank {} is behind: it {}", late, peer, position_text(positions[static_cast<size_t>(last)])));
  }
  if (missing_peer >= 0) {
    int peer = world_rank(group, missing_peer);
    if (one_peer)
      return CommError(CommError::Kind::timeout, peer,
                       fmt::format("{} on rank {}: rank {} {}", late, me, peer,
                                   position_text(positions[static_cast<size_t>(missing_peer)])));
    return CommError(
        CommError::Kind::timeout, peer,
        fmt::format("{} on rank {}: still exchanging data with rank {}; all ranks answer", late, me, peer));
  }
  return CommError(CommError::Kind::timeout, -1, fmt::format("{} on rank {}; all ranks answer", late, me));
}

}  // namespace esp::comm
