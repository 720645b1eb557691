#include "esp/comm/symbolic.h"

#include <algorithm>
#include <bit>
#include <iterator>

#include "esp/base/check.h"

namespace esp::comm {

RankSets::RankSets(int size) : size_(size) {
  number(Bits((static_cast<size_t>(size) + 63) / 64, 0));
}

uint32_t RankSets::number(const Bits& bits) {
  auto [at, fresh] = numbers_.try_emplace(bits, static_cast<uint32_t>(sets_.size()));
  if (fresh) sets_.push_back(bits);
  return at->second;
}

uint32_t RankSets::of(int rank) {
  Bits bits(sets_[0].size(), 0);
  bits[static_cast<size_t>(rank) / 64] |= uint64_t{1} << (rank % 64);
  return number(bits);
}

uint32_t RankSets::all() {
  Bits bits(sets_[0].size(), 0);
  for (int r = 0; r < size_; ++r) bits[static_cast<size_t>(r) / 64] |= uint64_t{1} << (r % 64);
  return number(bits);
}

std::optional<uint32_t> RankSets::disjoint_union(uint32_t a, uint32_t b, int& shared) {
  for (size_t word = 0; word < sets_[a].size(); ++word)
    if (uint64_t both = sets_[a][word] & sets_[b][word]; both != 0) {
      shared = static_cast<int>(word * 64) + std::countr_zero(both);
      return std::nullopt;
    }
  return any_union(a, b);
}

uint32_t RankSets::any_union(uint32_t a, uint32_t b) {
  Bits bits = sets_[a];
  for (size_t word = 0; word < bits.size(); ++word) bits[word] |= sets_[b][word];
  return number(bits);
}

std::vector<int> RankSets::ranks(uint32_t set) const {
  std::vector<int> result;
  for (int r = 0; r < size_; ++r)
    if ((sets_[set][static_cast<size_t>(r) / 64] >> (r % 64) & 1) != 0) result.push_back(r);
  return result;
}

SymbolicRanges SymbolicMemory::read(size_t offset, size_t count) const {
  SymbolicRanges parts;
  auto at = ranges_.upper_bound(offset);
  if (at != ranges_.begin() && std::prev(at)->second.end > offset) --at;
  for (size_t here = offset, end = offset + count; here < end;) {
    SymbolicRange part{here - offset, 0, 0, 0};
    if (at == ranges_.end() || at->first > here) {  // the memory before the next range was never written
      part.count = (at == ranges_.end() ? end : std::min(end, at->first)) - here;
    } else {
      part.count = std::min(end, at->second.end) - here;
      part.first = at->second.first + (here - at->first);
      part.set = at->second.set;
      ++at;
    }
    here += part.count;
    bool continues = !parts.empty() && parts.back().set == part.set &&
                     (part.set == 0 || parts.back().first + parts.back().count == part.first);
    if (continues)
      parts.back().count += part.count;
    else
      parts.push_back(part);
  }
  return parts;
}

void SymbolicMemory::write(size_t offset, const SymbolicRanges& parts) {
  for (const SymbolicRange& part : parts) {
    size_t begin = offset + part.offset, end = begin + part.count;
    cut(begin);
    cut(end);
    ranges_.erase(ranges_.lower_bound(begin), ranges_.lower_bound(end));
    ranges_[begin] = {end, part.first, part.set};
  }
}

void SymbolicMemory::cut(size_t at) {
  auto next = ranges_.upper_bound(at);
  if (next == ranges_.begin()) return;
  auto range = std::prev(next);
  if (range->first == at || range->second.end <= at) return;
  StoredRange tail = range->second;
  tail.first += at - range->first;
  range->second.end = at;
  ranges_.emplace(at, tail);
}

namespace {

SymbolicRanges cut_at(const SymbolicRanges& parts, const SymbolicRanges& seams) {
  SymbolicRanges result;
  size_t s = 0;
  for (SymbolicRange part : parts) {
    while (part.count > 0) {
      while (s < seams.size() && seams[s].offset + seams[s].count <= part.offset) ++s;
      ESP_CHECK(s < seams.size(), "the two lists of ranges have different total lengths");
      size_t count = std::min(part.count, seams[s].offset + seams[s].count - part.offset);
      result.push_back({part.offset, count, part.first, part.set});
      part.offset += count;
      part.first += count;
      part.count -= count;
    }
  }
  return result;
}

}  // namespace

void align(SymbolicRanges& a, SymbolicRanges& b) {
  a = cut_at(a, b);
  b = cut_at(b, a);
}

}  // namespace esp::comm
