#include "esp/net/connection_limiter.h"

#include <algorithm>

namespace esp::net {

ConnectionLimiter::Source& ConnectionLimiter::refill(const std::string& source, Clock::time_point now) {
  if (!sources_.contains(source)) trim();
  auto [found, fresh] = sources_.try_emplace(source);
  Source& entry = found->second;
  if (!fresh) {
    double seconds = std::chrono::duration<double>(now - entry.refilled).count();
    entry.tokens = std::min(kFailureBurst, entry.tokens + seconds * kFailuresPerSecond);
  }
  entry.refilled = now;
  return entry;
}

// Bounds the size of the source table: removes sources without pending handshakes that are not trusted. Trusted: this
// host, and sources from which a peer has authenticated.
void ConnectionLimiter::trim() {
  if (sources_.size() < kMaxSources) return;
  std::erase_if(sources_, [](const auto& item) { return item.second.pending.empty() && !item.second.trusted; });
}

bool ConnectionLimiter::admit(const std::string& source, bool local, Clock::time_point now) {
  Source& entry = refill(source, now);
  if (local) entry.trusted = true;
  return entry.trusted || entry.tokens >= 1;
}

void ConnectionLimiter::record_start(const std::string& source, int id) {
  sources_[source].pending.push_back(id);
  ids_[id] = source;
}

std::optional<int> ConnectionLimiter::evict(const std::string& source) {
  const Source& own = sources_[source];
  if (own.tokens < 1 && own.pending.size() >= kMaxPendingThrottled) return own.pending.front();
  if (ids_.size() < kMaxPending) return {};
  auto fullest = std::max_element(sources_.begin(), sources_.end(), [](const auto& a, const auto& b) {
    return a.second.pending.size() < b.second.pending.size();
  });
  return fullest->second.pending.front();
}

void ConnectionLimiter::record_success(int id) {
  Source& entry = sources_[ids_.at(id)];
  entry.trusted = true;
  entry.tokens = std::min(kFailureBurst, entry.tokens + 1);
  forget(id);
}

bool ConnectionLimiter::record_failure(int id, Clock::time_point now) {
  Source& entry = refill(ids_.at(id), now);
  entry.tokens = std::max(0.0, entry.tokens - 1);
  const bool spent = entry.tokens < 1;
  forget(id);
  return spent;
}

void ConnectionLimiter::forget(int id) {
  auto found = ids_.find(id);
  sources_[found->second].pending.remove(id);
  ids_.erase(found);
}

}  // namespace esp::net
