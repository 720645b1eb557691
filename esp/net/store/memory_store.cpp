#include "esp/net/store/memory_store.h"

#include <charconv>

#include <fmt/format.h>

#include "esp/base/error.h"
#include "esp/net/store/limits.h"

namespace esp::net {

void MemoryStore::set(std::string_view key, std::string_view value) {
  check_store_sizes(key, value);
  std::lock_guard lock(mutex_);
  values_.insert_or_assign(std::string(key), std::string(value));
  changed_.notify_all();
}

std::string MemoryStore::get(std::string_view key, Deadline deadline) {
  check_store_sizes(key, {});
  std::unique_lock lock(mutex_);
  bool found = changed_.wait_until(lock, deadline.when(), [&] { return values_.contains(key); });
  if (!found)
    throw CommError(CommError::Kind::timeout, -1, "timeout: no rank has set the value that this rank waits for");
  return values_.find(key)->second;
}

std::optional<std::string> MemoryStore::try_get(std::string_view key) {
  check_store_sizes(key, {});
  std::lock_guard lock(mutex_);
  auto found = values_.find(key);
  if (found == values_.end()) return std::nullopt;
  return found->second;
}

int64_t MemoryStore::add(std::string_view key, int64_t delta) {
  check_store_sizes(key, {});
  std::lock_guard lock(mutex_);
  std::string& value = values_[std::string(key)];
  int64_t sum = 0;
  auto [end, error] = std::from_chars(value.data(), value.data() + value.size(), sum);
  if (!value.empty() && (error != std::errc() || end != value.data() + value.size()))
    throw UsageError(fmt::format("rendezvous store: a counter holds {} bytes that are not a number", value.size()));
  if (__builtin_add_overflow(sum, delta, &sum)) throw UsageError("rendezvous store: a counter would overflow");
  value = fmt::format("{}", sum);
  changed_.notify_all();
  return sum;
}

void MemoryStore::erase(std::string_view key) {
  check_store_sizes(key, {});
  std::lock_guard lock(mutex_);
  if (auto found = values_.find(key); found != values_.end()) values_.erase(found);
}

}  // namespace esp::net
