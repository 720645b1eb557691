#include "esp/net/peer_status.h"

#include <fmt/format.h>

namespace esp::net {

void PeerStatus::mark_lost(int rank, const std::string& how) {
  std::lock_guard lock(mutex_);
  if (lost_.emplace(rank, how).second) notify_subscribers();
}

void PeerStatus::abort(uint64_t group, CommError cause) {
  std::lock_guard lock(mutex_);
  if (aborted_.emplace(group, std::move(cause)).second) notify_subscribers();
}

void PeerStatus::mark_left(int rank) {
  std::lock_guard lock(mutex_);
  if (left_.insert(rank).second) notify_subscribers();
}

void PeerStatus::fail_all(CommError cause, std::optional<int> lost, const std::string& how) {
  std::lock_guard lock(mutex_);
  bool changed = lost && lost_.emplace(*lost, how).second;
  if (!all_failed_) {
    all_failed_ = std::move(cause);
    changed = true;
  }
  if (changed) notify_subscribers();
}

void PeerStatus::notify_subscribers() {
  epoch_.fetch_add(1, std::memory_order_release);
  for (auto& [id, wake] : subscribers_) wake();
}

void PeerStatus::check(uint64_t group, const std::vector<int>& members) const {
  std::lock_guard lock(mutex_);
  check_locked(group, members);
}

void PeerStatus::check_present(uint64_t group, const std::vector<int>& members) const {
  std::lock_guard lock(mutex_);
  check_locked(group, members);
  for (int member : members)
    if (left_.contains(member)) throw peer_left_error_locked(member);
}

CommError PeerStatus::peer_left_error(int rank) const {
  std::lock_guard lock(mutex_);
  return peer_left_error_locked(rank);
}

CommError PeerStatus::peer_left_error_locked(int rank) const {
  if (lost_.empty()) return CommError(CommError::Kind::lost, rank, fmt::format("rank {} has left the job", rank));
  const auto& [lost, how] = *lost_.begin();
  return CommError(CommError::Kind::lost, lost, fmt::format("rank {} has left the job: rank {} {}", rank, lost, how));
}

void PeerStatus::check_locked(uint64_t group, const std::vector<int>& members) const {
  if (auto found = aborted_.find(group); found != aborted_.end()) throw found->second;
  for (int member : members)
    if (auto found = lost_.find(member); found != lost_.end())
      throw CommError(CommError::Kind::lost, member, fmt::format("rank {} {}", member, found->second));
  if (all_failed_) throw *all_failed_;
}

bool PeerStatus::is_lost(int rank) const {
  std::lock_guard lock(mutex_);
  return lost_.contains(rank);
}

std::string PeerStatus::loss_reason(int rank) const {
  std::lock_guard lock(mutex_);
  const auto found = lost_.find(rank);
  return found == lost_.end() ? "" : found->second;
}

bool PeerStatus::has_left(int rank) const {
  std::lock_guard lock(mutex_);
  return left_.contains(rank);
}

int PeerStatus::subscribe(std::function<void()> wake) {
  std::lock_guard lock(mutex_);
  subscribers_.emplace(next_id_, std::move(wake));
  return next_id_++;
}

void PeerStatus::unsubscribe(int id) {
  std::lock_guard lock(mutex_);
  subscribers_.erase(id);
}

}  // namespace esp::net
