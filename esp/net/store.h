// Store: a small shared map through which ranks find each other. Behind it: memory (threads of one process), file
// (a shared directory), tcp (a client of the Hub). Values are bytes, at most 64 KiB; keys at most 256 bytes.
// Every call may be made from any thread.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>

#include "esp/base/clock.h"

namespace esp::net {

inline constexpr size_t kMaxKeyBytes = 256;
inline constexpr size_t kMaxValueBytes = size_t{64} << 10;

class Store {
 public:
  virtual ~Store() = default;
  virtual void set(std::string_view key, std::string_view value) = 0;
  // Waits until the key is there. CommError(timeout) otherwise: callers that know say what they waited for.
  virtual std::string get(std::string_view key, Deadline deadline) = 0;
  virtual std::optional<std::string> try_get(std::string_view key) = 0;
  // Adds to a decimal counter that starts at 0; returns the sum.
  virtual int64_t add(std::string_view key, int64_t delta) = 0;
  virtual void erase(std::string_view key) = 0;
};

struct World;
struct Group;
// store.get, but a fault of the group ends it. `from`: whose word it is, for the error at the deadline: a rank of the
// world, or -1 for all of the group.
std::string await_key(const World& world, const Group& group, std::string_view key, int from, Deadline deadline);

}  // namespace esp::net
