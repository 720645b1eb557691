// Named counters that only grow: calls, bytes, messages. A Counters object returns references to Counter that stay
// valid for its lifetime. Any thread may add. In a concurrent snapshot each value is consistent, but different counters
// may be read at slightly different times.
#pragma once

#include <atomic>
#include <cstdint>
#include <deque>
#include <mutex>
#include <string>
#include <string_view>

#include "esp/base/json.h"

namespace esp::obs {

class Counter {
 public:
  void add(uint64_t amount = 1) { value_.fetch_add(amount, std::memory_order_relaxed); }
  uint64_t value() const { return value_.load(std::memory_order_relaxed); }

 private:
  std::atomic<uint64_t> value_{0};
};

class Counters {
 public:
  // Finds the counter of that name or creates it. This takes a lock, so keep the reference.
  Counter& counter(std::string_view name);

  // {"name": value, …} in order of creation.
  Json snapshot() const;

 private:
  struct Named {
    explicit Named(std::string_view n) : name(n) {}
    std::string name;
    Counter counter;
  };
  mutable std::mutex mutex_;  // guards counters_, not the values of the counters
  std::deque<Named> counters_;
};

}  // namespace esp::obs
