// MemoryStore: the store of ranks that are threads of one process (a map and a condition variable).
#pragma once

#include <condition_variable>
#include <map>
#include <mutex>

#include "esp/net/store.h"

namespace esp::net {

class MemoryStore final : public Store {
 public:
  void set(std::string_view key, std::string_view value) override;
  std::string get(std::string_view key, Deadline deadline) override;
  std::optional<std::string> try_get(std::string_view key) override;
  int64_t add(std::string_view key, int64_t delta) override;
  void erase(std::string_view key) override;

 private:
  std::mutex mutex_;  // guards values_
  std::condition_variable changed_;
  std::map<std::string, std::string, std::less<>> values_;
};

}  // namespace esp::net
