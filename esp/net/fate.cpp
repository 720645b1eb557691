#include "esp/net/fate.h"

#include <fmt/format.h>

namespace esp::net {

void Fate::lose(int rank, const std::string& how) {
  std::lock_guard lock(mutex_);
  if (lost_.emplace(rank, how).second) announce();
}

void Fate::abort(uint64_t group, CommError cause) {
  std::lock_guard lock(mutex_);
  if (aborted_.emplace(group, std::move(cause)).second) announce();
}

void Fate::leave(int rank) {
  std::lock_guard lock(mutex_);
  if (left_.insert(rank).second) announce();
}

void Fate::doom(CommError cause, std::optional<int> lost, const std::string& how) {
  std::lock_guard lock(mutex_);
  bool news = lost && lost_.emplace(*lost, how).second;
  if (!doomed_) {
    doomed_ = std::move(cause);
    news = true;
  }
  if (news) announce();
}

void Fate::announce() {
  epoch_.fetch_add(1, std::memory_order_release);
  for (auto& [id, wake] : subscribers_) wake();
}

void Fate::check(uint64_t group, const std::vector<int>& members) const {
  std::lock_guard lock(mutex_);
  check_locked(group, members);
}

void Fate::check_present(uint64_t group, const std::vector<int>& members) const {
  std::lock_guard lock(mutex_);
  check_locked(group, members);
  for (int member : members)
    if (left_.contains(member)) throw gone_locked(member);
}

CommError Fate::gone(int rank) const {
  std::lock_guard lock(mutex_);
  return gone_locked(rank);
}

CommError Fate::gone_locked(int rank) const {
  if (lost_.empty()) return CommError(CommError::Kind::lost, rank, fmt::format("rank {} has left the job", rank));
  const auto& [lost, how] = *lost_.begin();
  return CommError(CommError::Kind::lost, lost, fmt::format("rank {} has left the job: rank {} {}", rank, lost, how));
}

void Fate::check_locked(uint64_t group, const std::vector<int>& members) const {
  if (auto found = aborted_.find(group); found != aborted_.end()) throw found->second;
  for (int member : members)
    if (auto found = lost_.find(member); found != lost_.end())
      throw CommError(CommError::Kind::lost, member, fmt::format("rank {} {}", member, found->second));
  if (doomed_) throw *doomed_;
}

bool Fate::lost(int rank) const {
  std::lock_guard lock(mutex_);
  return lost_.contains(rank);
}

std::string Fate::loss(int rank) const {
  std::lock_guard lock(mutex_);
  const auto found = lost_.find(rank);
  return found == lost_.end() ? "" : found->second;
}

bool Fate::left(int rank) const {
  std::lock_guard lock(mutex_);
  return left_.contains(rank);
}

int Fate::subscribe(std::function<void()> wake) {
  std::lock_guard lock(mutex_);
  subscribers_.emplace(next_id_, std::move(wake));
  return next_id_++;
}

void Fate::unsubscribe(int id) {
  std::lock_guard lock(mutex_);
  subscribers_.erase(id);
}

}  // namespace esp::net
