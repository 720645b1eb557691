#include "esp/plan/search/result.h"

#include <algorithm>

namespace esp::plan {

bool better(const RankedChoice& a, const RankedChoice& b) {
  if (a.value != b.value) return a.value < b.value;
  if (a.memory_bytes != b.memory_bytes) return a.memory_bytes < b.memory_bytes;
  return a.choice < b.choice;
}

void SearchCounts::add(const SearchCounts& other) {
  considered += other.considered;
  broken += other.broken;
  too_large += other.too_large;
  pruned += other.pruned;
  evaluated += other.evaluated;
  subtrees += other.subtrees;
}

void BestChoices::offer(const RankedChoice& found) {
  if (options_.keep_seen > 0 && num_offered_++ % seen_every_ == 0) {
    seen_.push_back(found);
    // The list is full: every second entry is dropped, and from now on only half as many choices are recorded.
    if (seen_.size() >= 2 * options_.keep_seen) {
      for (size_t i = 0; i < options_.keep_seen; ++i) seen_[i] = seen_[2 * i];
      seen_.resize(options_.keep_seen);
      seen_every_ *= 2;
    }
  }
  if (options_.pareto) offer_front(found);
  if (top_.size() == options_.top && !better(found, top_.back())) return;
  const auto at = std::lower_bound(top_.begin(), top_.end(), found, better);
  if (at != top_.end() && at->choice == found.choice) return;
  top_.insert(at, found);
  if (top_.size() > options_.top) top_.pop_back();
}

void BestChoices::offer_front(const RankedChoice& found) {
  // `at - 1` is the last entry that is not slower than `found`. Of those entries it has the least memory.
  auto at = std::upper_bound(front_.begin(), front_.end(), found,
                             [](const RankedChoice& a, const RankedChoice& b) { return a.time_s < b.time_s; });
  if (at != front_.begin()) {
    const RankedChoice& before = *(at - 1);
    if (before.memory_bytes < found.memory_bytes) return;
    if (before.memory_bytes == found.memory_bytes) {
      if (before.time_s < found.time_s || !better(found, before)) return;
    }
  }
  auto first = at;
  while (first != front_.begin() && (first - 1)->time_s == found.time_s) --first;
  auto last = at;
  while (last != front_.end() && last->memory_bytes >= found.memory_bytes) ++last;
  first = front_.erase(first, last);
  front_.insert(first, found);
}

bool BestChoices::cannot_improve(const ChoiceValue& lower_bound, double memory_bytes) const {
  if (top_.size() < options_.top || lower_bound.value <= top_.back().value) return false;
  if (!options_.pareto) return true;
  const auto at = std::upper_bound(front_.begin(), front_.end(), lower_bound.time_s,
                                   [](double time, const RankedChoice& b) { return time < b.time_s; });
  return at != front_.begin() && (at - 1)->memory_bytes <= memory_bytes;
}

void BestChoices::merge(BestChoices&& other) {
  const size_t keep = options_.keep_seen;
  options_.keep_seen = 0;
  for (const RankedChoice& one : other.top_) offer(one);
  for (const RankedChoice& one : other.front_) offer(one);
  options_.keep_seen = keep;
  seen_.insert(seen_.end(), other.seen_.begin(), other.seen_.end());
}

void BestChoices::move_to(SearchResult& result) {
  result.top = std::move(top_);
  result.front = std::move(front_);
  result.seen = std::move(seen_);
}

}  // namespace esp::plan
