#include "esp/comm/schedule.h"

#include <algorithm>

#include "esp/base/check.h"

namespace esp::comm {
namespace {

BufferRegion cut(const BufferRegion& whole, size_t offset, size_t count) {
  return {whole.buffer, whole.offset + offset, count};
}

Action cut(const Action& action, size_t offset, size_t count) {
  Action result = action;
  result.region = cut(action.region, offset, count);
  for (BufferRegion& source : result.sources) source = cut(source, offset, count);
  return result;
}

// True if the regions are disjoint or equal. Equal regions are sliced alike, so a slice overlaps only its counterpart.
bool aligned(const BufferRegion& a, const BufferRegion& b) {
  return !a.overlaps(b) || a.offset == b.offset;
}

// True if two consecutive actions can be cut into slices that alternate, for example a copy and the sum added to it, or
// a receive and the reduction that uses the received data.
bool can_slice_as_pair(const Action& first, const Action& next) {
  if (first.type == ActionType::send || next.type == ActionType::send) return false;
  if (first.round != next.round || first.region.count != next.region.count) return false;
  // Two messages with the same peer must stay in order.
  if (first.peer >= 0 && next.peer >= 0) return false;
  std::vector<BufferRegion> a = first.sources, b = next.sources;
  a.push_back(first.region);
  b.push_back(next.region);
  return std::all_of(a.begin(), a.end(), [&](const BufferRegion& x) {
    return std::all_of(b.begin(), b.end(), [&](const BufferRegion& y) { return aligned(x, y); });
  });
}

}  // namespace

Schedule slice(const Schedule& schedule, size_t max_elements) {
  ESP_CHECK(max_elements > 0);
  Schedule result;
  result.scratch_count = schedule.scratch_count;
  result.num_rounds = schedule.num_rounds;
  const std::vector<Action>& actions = schedule.actions;
  for (size_t i = 0; i < actions.size();) {
    size_t count = actions[i].region.count;
    size_t end = i + 1;
    while (end < actions.size() && end < i + 2 && can_slice_as_pair(actions[i], actions[end])) ++end;
    size_t offset = 0;
    do {  // runs once even for a message of zero bytes
      size_t part = std::min(max_elements, count - offset);
      for (size_t k = i; k < end; ++k) result.actions.push_back(cut(actions[k], offset, part));
      offset += part;
    } while (offset < count);
    i = end;
  }
  return result;
}

}  // namespace esp::comm
