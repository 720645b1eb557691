#include "esp/data/tokenizer/bpe_merges.h"

#include <algorithm>
#include <bit>
#include <cstring>
#include <queue>

namespace esp::data {
namespace {

constexpr size_t kShort = 64;  // up to this length a linear scan of the ranks is faster than a heap

}  // namespace

BpeMerges::BpeMerges(const std::vector<Merge>& merges) {
  size_t slots = std::bit_ceil(2 * merges.size() + 2);
  slots_.assign(slots, {kNone, kNone});
  mask_ = slots - 1;
  shift_ = 64 - std::countr_zero(slots);
  for (const Merge& merge : merges) {
    uint64_t key = uint64_t{static_cast<uint32_t>(merge.left)} << 32 | static_cast<uint32_t>(merge.right);
    size_t slot = slot_of(key);
    while (slots_[slot].key != kNone && slots_[slot].key != key) slot = (slot + 1) & mask_;
    slots_[slot] = {key, uint64_t{merge.rank} << 32 | static_cast<uint32_t>(merge.id)};
  }
}

size_t BpeMerges::apply(int32_t* symbols, size_t count) const {
  return count <= kShort ? apply_short(symbols, count) : apply_long(symbols, count);
}

size_t BpeMerges::apply_short(int32_t* symbols, size_t count) const {
  if (count < 2) return count;
  uint64_t values[kShort];  // values[i]: rank and id of merging symbols i and i + 1
  for (size_t i = 0; i + 1 < count; ++i) values[i] = find(symbols[i], symbols[i + 1]);
  while (count > 1) {
    size_t best = 0;
    uint64_t lowest = values[0];
    for (size_t i = 1; i + 1 < count; ++i)
      if (values[i] < lowest) lowest = values[best = i];
    if (lowest == kNone) break;
    symbols[best] = static_cast<int32_t>(lowest);
    std::memmove(symbols + best + 1, symbols + best + 2, (count - best - 2) * sizeof *symbols);
    if (best + 2 < count) std::memmove(values + best, values + best + 1, (count - best - 2) * sizeof *values);
    --count;
    if (best > 0) values[best - 1] = find(symbols[best - 1], symbols[best]);
    if (best + 1 < count) values[best] = find(symbols[best], symbols[best + 1]);
  }
  return count;
}

// A linked list over the symbols and a heap of candidate merges. An outdated candidate is detected when it is popped.
size_t BpeMerges::apply_long(int32_t* symbols, size_t count) const {
  struct Candidate {
    uint64_t value;
    size_t at;
    bool operator>(const Candidate& other) const { return value != other.value ? value > other.value : at > other.at; }
  };
  constexpr size_t kEnd = SIZE_MAX;
  std::vector<size_t> next(count), previous(count);
  std::vector<bool> gone(count, false);
  std::vector<Candidate> start;
  for (size_t i = 0; i < count; ++i) {
    next[i] = i + 1 < count ? i + 1 : kEnd;
    previous[i] = i > 0 ? i - 1 : kEnd;
    if (i + 1 < count)
      if (uint64_t value = find(symbols[i], symbols[i + 1]); value != kNone) start.push_back({value, i});
  }
  std::priority_queue<Candidate, std::vector<Candidate>, std::greater<>> heap(std::greater<>(), std::move(start));
  auto consider = [&](size_t at) {
    if (at == kEnd || next[at] == kEnd) return;
    if (uint64_t value = find(symbols[at], symbols[next[at]]); value != kNone) heap.push({value, at});
  };
  while (!heap.empty()) {
    auto [value, at] = heap.top();
    heap.pop();
    if (gone[at] || next[at] == kEnd || find(symbols[at], symbols[next[at]]) != value) continue;
    size_t right = next[at];
    symbols[at] = static_cast<int32_t>(value);
    gone[right] = true;
    next[at] = next[right];
    if (next[at] != kEnd) previous[next[at]] = at;
    consider(previous[at]);
    consider(at);
  }
  size_t kept = 0;
  for (size_t i = 0; i != kEnd; i = next[i]) symbols[kept++] = symbols[i];
  return kept;
}

}  // namespace esp::data
