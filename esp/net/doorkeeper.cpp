#include "esp/net/doorkeeper.h"

#include <algorithm>

namespace esp::net {

Doorkeeper::Source& Doorkeeper::refill(const std::string& source, Clock::time_point now) {
  if (!sources_.contains(source)) trim();
  auto [found, fresh] = sources_.try_emplace(source);
  Source& entry = found->second;
  if (!fresh) {
    double seconds = std::chrono::duration<double>(now - entry.refilled).count();
    entry.tokens = std::min(kBurst, entry.tokens + seconds * kPerSecond);
  }
  entry.refilled = now;
  return entry;
}

// The table of sources is bounded: those nobody waits from and no peer came from go first.
void Doorkeeper::trim() {
  if (sources_.size() < kMaxSources) return;
  std::erase_if(sources_, [](const auto& item) { return item.second.pending.empty() && !item.second.trusted; });
}

bool Doorkeeper::admit(const std::string& source, bool local, Clock::time_point now) {
  Source& entry = refill(source, now);
  if (local) entry.trusted = true;
  return entry.trusted || entry.tokens >= 1;
}

void Doorkeeper::began(const std::string& source, int id) {
  sources_[source].pending.push_back(id);
  ids_[id] = source;
}

std::optional<int> Doorkeeper::evict(const std::string& source) {
  const Source& own = sources_[source];
  if (own.tokens < 1 && own.pending.size() >= kSuspectPending) return own.pending.front();
  if (ids_.size() < kMaxPending) return {};
  auto fullest = std::max_element(sources_.begin(), sources_.end(), [](const auto& a, const auto& b) {
    return a.second.pending.size() < b.second.pending.size();
  });
  return fullest->second.pending.front();
}

void Doorkeeper::succeeded(int id) {
  Source& entry = sources_[ids_.at(id)];
  entry.trusted = true;
  entry.tokens = std::min(kBurst, entry.tokens + 1);
  forget(id);
}

bool Doorkeeper::failed(int id, Clock::time_point now) {
  Source& entry = refill(ids_.at(id), now);
  entry.tokens = std::max(0.0, entry.tokens - 1);
  const bool spent = entry.tokens < 1;
  forget(id);
  return spent;
}

void Doorkeeper::forget(int id) {
  auto found = ids_.find(id);
  sources_[found->second].pending.remove(id);
  ids_.erase(found);
}

}  // namespace esp::net
