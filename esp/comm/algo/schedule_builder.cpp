#include "esp/comm/algo/schedule_builder.h"

#include <algorithm>
#include <bit>
#include <cmath>
#include <numeric>
#include <utility>

#include <fmt/ranges.h>

#include "esp/base/check.h"
#include "esp/base/error.h"

namespace esp::comm {

int floor_log2(int n) {
  ESP_CHECK(n >= 1);
  return std::bit_width(static_cast<unsigned>(n)) - 1;
}

int ceil_log2(int n) {
  ESP_CHECK(n >= 1);
  return n == 1 ? 0 : std::bit_width(static_cast<unsigned>(n - 1));
}

BufferRegion chunks(const BufferRegion& whole, int n, int first, int last) {
  if (first >= last) return {whole.buffer, whole.offset, 0};
  Chunk begin = chunk_of(whole.count, n, first), end = chunk_of(whole.count, n, last - 1);
  return piece(whole, {begin.offset, end.offset + end.count - begin.offset});
}

void ScheduleBuilder::send(int peer, BufferRegion what) {
  if (what.count > 0) schedule_.actions.push_back({ActionType::send, round, peer, what, {}});
}
void ScheduleBuilder::receive(int peer, BufferRegion into) {
  if (into.count > 0) schedule_.actions.push_back({ActionType::receive, round, peer, into, {}});
}
void ScheduleBuilder::receive_reduce(int peer, BufferRegion into) {
  if (into.count > 0) schedule_.actions.push_back({ActionType::receive_reduce, round, peer, into, {}});
}
void ScheduleBuilder::copy(BufferRegion into, BufferRegion from) {
  ESP_CHECK(into.count == from.count, "copy: got a source of {} elements; expected {}, the size of the destination",
            from.count, into.count);
  if (into.count > 0) schedule_.actions.push_back({ActionType::copy, round, -1, into, {from}});
}
void ScheduleBuilder::reduce(BufferRegion into, std::vector<BufferRegion> sources) {
  if (into.count > 0) schedule_.actions.push_back({ActionType::reduce, round, -1, into, std::move(sources)});
}
void ScheduleBuilder::signal(int peer) {
  schedule_.actions.push_back({ActionType::send, round, peer, {Buffer::scratch, 0, 0}, {}});
}
void ScheduleBuilder::wait_for_signal(int peer) {
  schedule_.actions.push_back({ActionType::receive, round, peer, {Buffer::scratch, 0, 0}, {}});
}

BufferRegion ScheduleBuilder::scratch(size_t count) {
  BufferRegion fresh{Buffer::scratch, schedule_.scratch_count, count};
  schedule_.scratch_count += count;
  return fresh;
}

// Within each round, moves sends before receives, unless the data of the send comes from a receive. A rank that runs
// strictly in order must send the message its peer waits for before it waits itself.
static void sends_first(std::vector<Action>& actions) {
  for (size_t i = 1; i < actions.size(); ++i) {
    if (actions[i].type != ActionType::send) continue;
    for (size_t at = i; at > 0; --at) {
      Action &earlier = actions[at - 1], &send = actions[at];
      if (earlier.round != send.round || earlier.type == ActionType::send || earlier.region.overlaps(send.region))
        break;
      std::swap(earlier, send);
    }
  }
}

Schedule ScheduleBuilder::finish() {
  schedule_.num_rounds = round;
  // Actions after the last exchange (for example a copy that unpacks data) belong to the round of that exchange.
  for (Action& action : schedule_.actions) action.round = std::min(action.round, std::max(0, round - 1));
  std::stable_sort(schedule_.actions.begin(), schedule_.actions.end(),
                   [](const Action& a, const Action& b) { return a.round < b.round; });
  sends_first(schedule_.actions);
  return std::move(schedule_);
}

RankSequence all_ranks(const CollectiveSpec& spec) {
  return ranks_from(spec, 0);
}

RankSequence ranks_from(const CollectiveSpec& spec, int root) {
  RankSequence sequence;
  for (int v = 0; v < spec.size; ++v) sequence.ranks.push_back((root + v) % spec.size);
  sequence.me = mod(spec.rank - root, spec.size);
  return sequence;
}

RankSequence reversed(RankSequence sequence) {
  std::reverse(sequence.ranks.begin(), sequence.ranks.end());
  if (sequence.me >= 0) sequence.me = sequence.size() - 1 - sequence.me;
  return sequence;
}

RankSequence ranks_along(const RankGrid& shape, int rank, int axis) {
  int stride = 1;
  for (int a = 0; a < axis; ++a) stride *= shape.dims[static_cast<size_t>(a)];
  int length = shape.dims[static_cast<size_t>(axis)];
  RankSequence sequence;
  sequence.me = rank / stride % length;
  for (int i = 0; i < length; ++i) sequence.ranks.push_back(rank + (i - sequence.me) * stride);
  return sequence;
}

namespace {

// Returns the larger of two factors of n that are as equal as possible.
int even_split(int n) {
  int small = static_cast<int>(std::sqrt(static_cast<double>(n)) + 0.5);
  while (small > 1 && n % small != 0) --small;
  return n / std::max(1, small);
}

int sum_of(const std::vector<int>& dims) {
  return std::accumulate(dims.begin(), dims.end(), 0);
}

// Splits n into k factors with the smallest sum, because that gives the fewest rounds. `best` receives the factors,
// largest first. Recursive: `now` holds the factors chosen so far.
void most_even(int n, int k, int at_most, std::vector<int>& now, std::vector<int>& best) {
  if (k == 1) {
    if (n > at_most) return;
    now.push_back(n);
    if (best.empty() || sum_of(now) < sum_of(best)) best = now;
    now.pop_back();
    return;
  }
  for (int factor = std::min(n, at_most); factor >= 1; --factor)
    if (n % factor == 0) {
      now.push_back(factor);
      most_even(n / factor, k - 1, factor, now, best);
      now.pop_back();
    }
}

}  // namespace

std::string grid_problem(const CollectiveSpec& spec, int num_axes) {
  const std::vector<int>& dims = spec.shape.dims;
  if (dims.empty()) return "";
  int64_t product = 1;
  for (int d : dims) {
    if (d < 1 || product > spec.size)
      return fmt::format("needs a shape of positive axes; got {}", fmt::join(dims, "x"));
    product *= d;
  }
  if (product != spec.size)
    return fmt::format("needs a shape of {} ranks; got {} = {} ranks", spec.size, fmt::join(dims, "x"), product);
  if (num_axes > 0 && static_cast<int>(dims.size()) > num_axes)
    return fmt::format("needs a shape of {} axes; got {}", num_axes, fmt::join(dims, "x"));
  return "";
}

RankGrid grid_for(const CollectiveSpec& spec, int num_axes) {
  std::string wrong = grid_problem(spec, num_axes);
  if (!wrong.empty()) throw UsageError(fmt::format("{} {}", name_of(spec.op), wrong));
  RankGrid shape = spec.shape;
  if (shape.dims.empty() && num_axes == 0) {
    for (int left = spec.size, factor = 2; left > 1; ++factor)
      for (; left % factor == 0; left /= factor) shape.dims.insert(shape.dims.begin(), factor);
    if (shape.dims.empty()) shape.dims = {1};
  } else if (shape.dims.empty()) {
    std::vector<int> now;
    most_even(spec.size, num_axes, spec.size, now, shape.dims);
  }
  while (static_cast<int>(shape.dims.size()) < num_axes) {
    auto largest = std::max_element(shape.dims.begin(), shape.dims.end());
    int whole = *largest, fast = even_split(whole);
    *largest = fast;
    shape.dims.insert(largest + 1, whole / fast);
  }
  return shape;
}

}  // namespace esp::comm
