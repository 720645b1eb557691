#include "esp/comm/algo/draft.h"

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

Region chunks(const Region& whole, int n, int first, int last) {
  if (first >= last) return {whole.buffer, whole.offset, 0};
  Chunk begin = chunk_of(whole.count, n, first), end = chunk_of(whole.count, n, last - 1);
  return piece(whole, {begin.offset, end.offset + end.count - begin.offset});
}

void Draft::send(int peer, Region what) {
  if (what.count > 0) schedule_.actions.push_back({Act::send, round, peer, what, {}});
}
void Draft::receive(int peer, Region into) {
  if (into.count > 0) schedule_.actions.push_back({Act::receive, round, peer, into, {}});
}
void Draft::receive_reduce(int peer, Region into) {
  if (into.count > 0) schedule_.actions.push_back({Act::receive_reduce, round, peer, into, {}});
}
void Draft::copy(Region into, Region from) {
  ESP_CHECK(into.count == from.count, "copy of {} into {}", from.count, into.count);
  if (into.count > 0) schedule_.actions.push_back({Act::copy, round, -1, into, {from}});
}
void Draft::reduce(Region into, std::vector<Region> sources) {
  if (into.count > 0) schedule_.actions.push_back({Act::reduce, round, -1, into, std::move(sources)});
}
void Draft::signal(int peer) {
  schedule_.actions.push_back({Act::send, round, peer, {Buffer::scratch, 0, 0}, {}});
}
void Draft::await(int peer) {
  schedule_.actions.push_back({Act::receive, round, peer, {Buffer::scratch, 0, 0}, {}});
}

Region Draft::scratch(size_t count) {
  Region fresh{Buffer::scratch, schedule_.scratch_count, count};
  schedule_.scratch_count += count;
  return fresh;
}

// Within a round sends go before receives, as far as what they send is there: a rank that runs strictly in order must
// not wait for a message while holding back the one its peer waits for.
static void sends_first(std::vector<Action>& actions) {
  for (size_t i = 1; i < actions.size(); ++i) {
    if (actions[i].act != Act::send) continue;
    for (size_t at = i; at > 0; --at) {
      Action &earlier = actions[at - 1], &send = actions[at];
      if (earlier.round != send.round || earlier.act == Act::send || earlier.region.overlaps(send.region)) break;
      std::swap(earlier, send);
    }
  }
}

Schedule Draft::finish() {
  schedule_.num_rounds = round;
  // What follows the last exchange (an unpacking copy) belongs to it.
  for (Action& action : schedule_.actions) action.round = std::min(action.round, std::max(0, round - 1));
  std::stable_sort(schedule_.actions.begin(), schedule_.actions.end(),
                   [](const Action& a, const Action& b) { return a.round < b.round; });
  sends_first(schedule_.actions);
  return std::move(schedule_);
}

Line everyone(const Problem& problem) {
  return everyone_from(problem, 0);
}

Line everyone_from(const Problem& problem, int root) {
  Line line;
  for (int v = 0; v < problem.size; ++v) line.ranks.push_back((root + v) % problem.size);
  line.me = mod(problem.rank - root, problem.size);
  return line;
}

Line reversed(Line line) {
  std::reverse(line.ranks.begin(), line.ranks.end());
  if (line.me >= 0) line.me = line.size() - 1 - line.me;
  return line;
}

Line along(const Shape& shape, int rank, int axis) {
  int stride = 1;
  for (int a = 0; a < axis; ++a) stride *= shape.dims[static_cast<size_t>(a)];
  int length = shape.dims[static_cast<size_t>(axis)];
  Line line;
  line.me = rank / stride % length;
  for (int i = 0; i < length; ++i) line.ranks.push_back(rank + (i - line.me) * stride);
  return line;
}

namespace {

// The larger factor of the most even split of n in two.
int even_split(int n) {
  int small = static_cast<int>(std::sqrt(static_cast<double>(n)) + 0.5);
  while (small > 1 && n % small != 0) --small;
  return n / std::max(1, small);
}

int sum_of(const std::vector<int>& dims) {
  return std::accumulate(dims.begin(), dims.end(), 0);
}

// The split of n in k with the least sum, which is the fewest rounds; largest factor first.
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

std::string shape_problem(const Problem& problem, int num_axes) {
  const std::vector<int>& dims = problem.shape.dims;
  if (dims.empty()) return "";
  int64_t product = 1;
  for (int d : dims) {
    if (d < 1 || product > problem.size)
      return fmt::format("needs a shape of positive axes, {} given", fmt::join(dims, "x"));
    product *= d;
  }
  if (product != problem.size)
    return fmt::format("needs a shape of {} ranks, {} given, which is {}", problem.size, fmt::join(dims, "x"), product);
  if (num_axes > 0 && static_cast<int>(dims.size()) > num_axes)
    return fmt::format("needs a shape of {} axes, {} given", num_axes, fmt::join(dims, "x"));
  return "";
}

Shape shape_of(const Problem& problem, int num_axes) {
  std::string wrong = shape_problem(problem, num_axes);
  if (!wrong.empty()) throw UsageError(fmt::format("{} {}", name_of(problem.op), wrong));
  Shape shape = problem.shape;
  if (shape.dims.empty() && num_axes == 0) {
    for (int left = problem.size, factor = 2; left > 1; ++factor)
      for (; left % factor == 0; left /= factor) shape.dims.insert(shape.dims.begin(), factor);
    if (shape.dims.empty()) shape.dims = {1};
  } else if (shape.dims.empty()) {
    std::vector<int> now;
    most_even(problem.size, num_axes, problem.size, now, shape.dims);
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
